"""One run with damaged data to which nothing else happens, for all tests of this room."""

from collections.abc import Iterator

import pytest
from sandbox_fixture import Cluster
from training_jobs import Namespace, guard_policy, new_namespace
from trimtab_sandbox.cluster import SandboxInfo
from undisturbed_runs import damaged_job


@pytest.fixture(scope="session")
def undisturbed(operator: Cluster, sandbox: SandboxInfo) -> Iterator[Namespace]:
    """The completed job `damaged`."""
    with new_namespace(operator, sandbox, "undisturbed") as namespace:
        namespace.apply(guard_policy(), damaged_job("damaged"))
        namespace.wait_phase("damaged", "Completed", seconds=280)
        yield namespace
