"""Bringing the sandbox up, taking it down, and saying how it is."""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab_sandbox import (
    certificates,
    containerd,
    control_plane,
    images,
    kubelet,
    leftovers,
    manifests,
    network,
    ownership,
    packages,
    redis_server,
    s3_server,
)
from trimtab_sandbox.build import Binaries, ensure_binaries
from trimtab_sandbox.commands import Progress, wait_until
from trimtab_sandbox.credentials import Credentials, ensure_credentials
from trimtab_sandbox.environment import environment
from trimtab_sandbox.errors import SandboxDownError, SandboxHeldError, UnknownProcessError, UnsupportedMachineError
from trimtab_sandbox.kubeconfig import API_SERVER, Kubectl, write_kubeconfigs
from trimtab_sandbox.processes import Component, ManagedProcess, read_records, spawn
from trimtab_sandbox.settings import (
    API_PORT,
    BRIDGE_ADDRESS,
    CACHE_VARIABLE,
    HOME_VARIABLE,
    NODE_NAME,
    POD_TEMPORARY,
    SYSTEM_NAMESPACE,
    Layout,
    Options,
    default_home,
    python_prefixes,
)

PROCESS_NAMES = (
    "etcd",
    "apiserver",
    "containerd",
    "redis",
    "s3",
    "controller-manager",
    "scheduler",
    "kubelet",
    "proxy",
    "dns",
)
"""Every process of a sandbox, in the order in which they start."""

_STOP_ORDER = PROCESS_NAMES[:1:-1]


@dataclass(frozen=True)
class SandboxInfo:
    """A running sandbox. ``started`` is how many processes this call had to start, ``seconds`` what it took."""

    home: Path
    kubeconfig: Path
    environment: dict[str, str]
    started: int
    seconds: float


@dataclass(frozen=True)
class ProcessStatus:
    """One process: its id when it runs, whether it is frozen, and its resident memory in MiB."""

    name: str
    pid: int | None
    frozen: bool
    resident_mebibytes: int


@dataclass(frozen=True)
class SandboxStatus:
    """How a sandbox is. ``running`` means that every process runs and the API server says it is ready."""

    home: Path
    running: bool
    processes: tuple[ProcessStatus, ...]


def _silent(_: str) -> None:
    """Progress for those who want none."""


def api_server_ready(layout: Layout) -> bool:
    """Whether the API server answers, in time, that it is ready."""
    authority = layout.pki / "ca.crt"
    if not authority.exists():
        return False
    try:
        context = ssl.create_default_context(cafile=str(authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{API_SERVER}/readyz", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


class _Start:
    """One run of ``up`` on a claimed machine; every step may find its work done."""

    def __init__(self, options: Options, binaries: Binaries, progress: Progress) -> None:
        self.options = options
        self.layout = Layout(options.home)
        self.kube = binaries.kube
        self.binaries = binaries
        self.progress = progress
        self.kubectl = Kubectl(binaries.kube, self.layout.kubeconfig())
        self.started = 0

    def run(self) -> None:
        credentials = self.prepare()
        layout, kube = self.layout, self.kube
        self.progress("starting etcd, containerd, Redis and S3")
        etcd = self.ensure(control_plane.etcd(layout, kube))
        engine = self.ensure(containerd.containerd(layout))
        redis = self.ensure(redis_server.redis_server(layout))
        s3 = self.ensure(s3_server.s3_server(layout))
        etcd.wait_listening()
        self.progress("starting the API server")
        self.ensure(control_plane.apiserver(layout, kube)).wait_listening()
        wait_until("containerd answering", lambda: containerd.answers(layout))
        if engine:
            images.load_basic_images(layout)
        wait_until("The API server becoming ready", lambda: api_server_ready(layout))
        self.progress("starting the controllers and the node")
        node = [
            self.ensure(control_plane.controller_manager(layout, kube)),
            self.ensure(control_plane.scheduler(layout, kube)),
            self.ensure(kubelet.kubelet(layout, kube)),
            self.ensure(kubelet.proxy(layout, kube)),
        ]
        self.kubectl.apply([manifests.namespace()])
        self.kubectl.apply(manifests.objects(credentials))
        # Refused lists make CoreDNS back off for seconds, so it starts once its role exists.
        node.append(self.ensure(kubelet.dns(layout, kube)))
        for managed in (*node, redis, s3):
            managed.wait_listening()
        wait_until("Redis answering", lambda: redis_server.answers(credentials))
        s3_server.ensure_buckets(credentials)
        self.progress("waiting for the node")
        self.wait_node()

    def prepare(self) -> Credentials:
        """Write every file that the processes read."""
        layout = self.layout
        layout.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        layout.shown_tree.write_text(_shown_tree(self.options))
        network.create_bridge(layout)
        if not layout.pki.exists():
            certificates.write_pki(layout.pki)
            write_kubeconfigs(layout)
        credentials = ensure_credentials(layout.credentials)
        (layout.home / "cni").mkdir(exist_ok=True)
        (layout.home / "cni" / "10-trimtab.conflist").write_text(network.render_cni(layout))
        containerd.write_configuration(layout, self.options)
        kubelet.write_configuration(layout)
        redis_server.write_configuration(layout, credentials)
        s3_server.write_configuration(layout, credentials)
        self.write_commands()
        return credentials

    def write_commands(self) -> None:
        """Make the directory that goes in front of PATH."""
        directory = self.layout.commands
        directory.mkdir(exist_ok=True)
        kubectl = directory / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec "{self.binaries.kube}" kubectl "$@"\n')
        kubectl.chmod(0o755)
        helm = directory / "helm"
        helm.unlink(missing_ok=True)
        helm.symlink_to(self.binaries.helm)

    def ensure(self, component: Component) -> ManagedProcess:
        """Start a component unless its process lives; wake it if it was frozen."""
        managed = read_records(self.layout.processes).get(component.name)
        if managed is not None and managed.is_running():
            managed.thaw()
            return managed
        self.started += 1
        record = self.layout.processes / f"{component.name}.json"
        return spawn(component, record=record, log=self.layout.logs / f"{component.name}.log")

    def wait_node(self) -> None:
        """Wait until pods can be made and run."""
        node = f"node/{NODE_NAME}"
        self.kubectl.run("wait", "--for=create", node, "--timeout=60s")
        self.kubectl.run("wait", "--for=condition=Ready", node, "--timeout=60s")
        for namespace in ("default", SYSTEM_NAMESPACE):
            self.kubectl.run(
                "wait", "--for=create", "serviceaccount/default", f"--namespace={namespace}", "--timeout=60s"
            )


def up(options: Options | None = None, progress: Progress = _silent) -> SandboxInfo:
    """Bring the sandbox up, or complete one that lacks processes; quick when it runs already.

    When none of its processes lives (a kill, a reboot), what they left is removed and the cluster starts empty, with
    Redis's and S3's data as they were.

    Raises:
        SandboxError: one of its kinds, with what to do.
    """
    options = options or Options()
    packages.check_machine()
    if options.mounted:
        _refuse_hidden_python(python_prefixes())
    packages.ensure_packages(progress)
    binaries = ensure_binaries(options.repository, options.cache, progress)
    begun = time.monotonic()
    with ownership.exclusive(progress):
        ownership.refuse_second(options.home)
        layout = Layout(options.home)
        running = [managed.name for managed in read_records(layout.processes).values() if managed.is_running()]
        if running:
            _refuse_other_tree(layout, options)
        else:
            for home in dict.fromkeys((ownership.holder() or options.home, options.home)):
                if _clean(Layout(home)):
                    progress("cleared what an earlier sandbox left")
            fixed = ((BRIDGE_ADDRESS, API_PORT),) if network.bridge_exists() else ()
            network.check_free((*control_plane.RESERVED, *kubelet.RESERVED, *s3_server.RESERVED, *fixed))
        ownership.claim(options.home)
        start = _Start(options, binaries, progress)
        if set(running) != set(PROCESS_NAMES) or _any_frozen(layout) or not api_server_ready(layout):
            start.run()
    seconds = time.monotonic() - begun
    progress(f"the sandbox is up ({seconds:.1f} s)" if start.started else "the sandbox is up already")
    return SandboxInfo(options.home, layout.kubeconfig(), environment(options.home), start.started, seconds)


def _shown_tree(options: Options) -> str:
    return str(options.repository) if options.mounted else ""


def _refuse_hidden_python(prefixes: Sequence[Path]) -> None:
    # What a container mounts there hides what this machine has, and its programs would only be called missing.
    hidden = [str(prefix) for prefix in prefixes if prefix.is_relative_to(POD_TEMPORARY)]
    if hidden:
        raise UnsupportedMachineError(
            f"Pods have a {POD_TEMPORARY} of their own, so they cannot see the Python in {', '.join(hidden)}: "
            f"set {CACHE_VARIABLE} to a directory elsewhere."
        )


def _refuse_other_tree(layout: Layout, options: Options) -> None:
    # Adopting it would test another working tree's code in silence.
    shown, wanted = layout.shown_tree.read_text(), _shown_tree(options)
    if shown != wanted:
        raise SandboxHeldError(
            f"The running sandbox shows pods {shown or 'no working tree'}, and what is asked for is "
            f"{wanted or 'no working tree'}. Take it down with "
            f"`{HOME_VARIABLE}={layout.home} python -m trimtab_sandbox down` first."
        )


def _any_frozen(layout: Layout) -> bool:
    return any(managed.is_frozen() for managed in read_records(layout.processes).values())


def _stop(processes: Sequence[ManagedProcess]) -> None:
    for managed in processes:
        managed.stop(seconds=5)


def _clean(layout: Layout) -> bool:
    """Remove everything that a sandbox without living processes left; False when there was nothing."""
    if not layout.processes.exists() and not network.bridge_exists():
        return False
    leftovers.kill_containers(layout)
    leftovers.unmount_all(layout)
    network.remove_network(layout)
    network.remove_kubernetes_chains()
    leftovers.remove_cgroups()
    leftovers.remove_log_links(layout)
    s3_server.remove_sockets()
    leftovers.remove_cluster_state(layout)
    return True


def down(home: Path | None = None, progress: Progress = _silent, *, keep_data: bool = False) -> None:
    """End exactly what ``up`` started and remove its traces; the cache of built programs stays.

    ``keep_data`` leaves Redis's and S3's data and the credentials for the next ``up``.

    Raises:
        SandboxError: one of its kinds, with what to do.
    """
    packages.check_machine()
    layout = Layout(home or default_home())
    with ownership.exclusive(progress):
        ownership.refuse_second(layout.home)
        if not layout.home.exists():
            progress("there is no sandbox")
            return
        progress("ending the sandbox's processes")
        records = read_records(layout.processes)
        ordered = [records[name] for name in _STOP_ORDER if name in records]
        _stop([managed for managed in ordered if managed.name != "containerd"])
        leftovers.kill_containers(layout)
        _stop([managed for managed in map(records.get, ("containerd", "apiserver", "etcd")) if managed])
        _clean(layout)
        if not keep_data:
            leftovers.remove_home(layout)
        if ownership.holder() == layout.home:
            ownership.release()
    progress("the sandbox is down")


def status(home: Path | None = None) -> SandboxStatus:
    """Say how the sandbox is; never changes anything."""
    layout = Layout(home or default_home())
    records = read_records(layout.processes)
    processes = tuple(_process_status(name, records.get(name)) for name in PROCESS_NAMES)
    running = all(process.pid is not None and not process.frozen for process in processes)
    return SandboxStatus(layout.home, running and api_server_ready(layout), processes)


def _process_status(name: str, managed: ManagedProcess | None) -> ProcessStatus:
    if managed is None or managed.identity is None or not managed.is_running():
        return ProcessStatus(name, None, frozen=False, resident_mebibytes=0)
    pid = managed.identity.pid
    return ProcessStatus(name, pid, managed.is_frozen(), leftovers.resident_mebibytes(pid))


def sandbox_processes(home: Path | None = None) -> dict[str, ManagedProcess]:
    """The processes of the sandbox by name, to freeze, thaw, kill, stop or start one.

    Raises:
        SandboxDownError: there are none.
    """
    records = read_records(Layout(home or default_home()).processes)
    if not records:
        raise SandboxDownError("The sandbox is not up: run `trimtab sandbox up` first.")
    return records


def sandbox_process(name: str, home: Path | None = None) -> ManagedProcess:
    """One process of the sandbox.

    Raises:
        SandboxDownError: the sandbox is not up.
        UnknownProcessError: it has no process of that name.
    """
    processes = sandbox_processes(home)
    if name not in processes:
        raise UnknownProcessError(f"The sandbox has no process {name!r}; it has {', '.join(sorted(processes))}.")
    return processes[name]
