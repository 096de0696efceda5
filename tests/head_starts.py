"""Jobs that train while the test before theirs waits: most of a test on the node is waiting."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import count

from sandbox_fixture import Cluster
from training_jobs import Json, Namespace, new_namespace
from trimtab_sandbox.cluster import SandboxInfo

HeadStart = Callable[[], Namespace]
"""Gives the namespace that is under way, and a new one to whoever asks again: to a test that is tried once more."""


@contextmanager
def head_start(operator: Cluster, sandbox: SandboxInfo, purpose: str, *objects: Json) -> Generator[HeadStart]:
    """Apply the objects in a namespace of their own now; for a fixture of a module's scope."""
    with ExitStack() as opened:
        numbers = count(1)

        def start() -> Namespace:
            namespace = opened.enter_context(new_namespace(operator, sandbox, f"{purpose} {next(numbers)}"))
            namespace.apply(*objects)
            return namespace

        waiting = [start()]
        yield lambda: waiting.pop() if waiting else start()
