"""An object store behind a link of a known rate, as stores are; on one machine the loopback would be faster than any.

The server runs in a network namespace of its own, which goes with it. Needs root and Linux.
"""

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from object_store_fixture import ObjectStoreServer
from server_process import LOOPBACK

_NAMESPACE, _NEAR, _FAR = "trimtab-bench", "trimtab-near", "trimtab-far"
_ADDRESS, _FAR_ADDRESS = "10.77.0.1", "10.77.0.2"


class DistantStore(ObjectStoreServer):
    """The server at the far end of the link."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.endpoint = self.endpoint.replace(LOOPBACK, _FAR_ADDRESS)

    def command(self) -> list[str]:
        """See `ServerProcess.command`."""
        own = [part.replace(LOOPBACK, _FAR_ADDRESS) for part in super().command()]
        return ["ip", "netns", "exec", _NAMESPACE, *own]


@contextmanager
def distant_store(folder: Path, gigabits: float) -> Generator[ObjectStoreServer]:
    """A running server that sends at most so many gigabits a second."""
    try:
        _run(f"ip netns add {_NAMESPACE}")
        _run(f"ip link add {_NEAR} type veth peer name {_FAR} netns {_NAMESPACE}")
        _run(f"ip addr add {_ADDRESS}/30 dev {_NEAR}")
        _run(f"ip link set {_NEAR} up")
        _run(f"ip -n {_NAMESPACE} addr add {_FAR_ADDRESS}/30 dev {_FAR}")
        _run(f"ip -n {_NAMESPACE} link set {_FAR} up")
        _run(f"ip -n {_NAMESPACE} link set lo up")
        rate = f"rate {gigabits * 1000:.0f}mbit burst 1mb latency 50ms"
        _run(f"ip netns exec {_NAMESPACE} tc qdisc add dev {_FAR} root tbf {rate}")
        server = DistantStore(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        # The link ends with the namespace that holds one end of it.
        subprocess.run(["ip", "netns", "del", _NAMESPACE], check=False)


def _run(line: str) -> None:
    subprocess.run(line.split(), check=True)
