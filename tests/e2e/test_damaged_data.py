"""The loop on the real node: a damaged stretch of data is seen, rolled back, skipped past, and the run completes."""

from collections import Counter
from collections.abc import Iterator

import pytest
from head_starts import HeadStart, head_start
from sandbox_fixture import Cluster
from training_jobs import Namespace, guard_policy, prepare_data, training_job
from trimtab_sandbox.cluster import SandboxInfo

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def late(operator: Cluster, sandbox: SandboxInfo) -> Iterator[HeadStart]:
    """A job whose last five windows are noise."""
    job = training_job("late", prepare_data(damage=[(195, 199)]), steps=200)
    with head_start(operator, sandbox, "late", guard_policy(), job) as started:
        yield started


@pytest.mark.usefixtures("late")
def test_a_damaged_stretch_is_rolled_back_and_skipped_whole_in_place(namespace: Namespace) -> None:
    """Six damaged windows, of which three are seen when the rule fires; no pod restarts."""
    data = prepare_data(damage=[(180, 185)])
    namespace.apply(guard_policy(), training_job("damaged", data))
    namespace.wait_phase("damaged", "Completed")

    trail = namespace.trail("damaged")
    opened = trail.of("IncidentOpened")
    assert [one.reason["rule"] for one in opened if one.reason] == ["loss-spike"]
    latch = (opened[0].after or {})["latch"]
    assert latch["first_bad_step"] == 181
    assert latch["flagged"] == [180, 182]
    (target,) = trail.of("TargetSelected")
    assert (target.after or {})["plan"]["target"]["step"] == 170
    (extent,) = trail.of("ExtentFound")
    skip = (extent.after or {})["skip"]
    assert skip["first"] >= 179
    assert skip["last"] <= 187
    assert skip["first"] <= 180
    assert skip["last"] >= 185
    assert [one.outcome for one in trail.of("IncidentClosed")] == ["Recovered"]
    assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods("damaged")} == {"1"}

    surviving = namespace.surviving("damaged")
    assert sorted(surviving) == list(range(1, 301))
    trained = [record.window for record in surviving.values()]
    skipped = set(range(skip["first"], skip["last"] + 1))
    assert sorted(trained) == [window for window in range(301 + len(skipped) - 1) if window not in skipped]
    assert all(record.scalars["loss"] < 4 for step, record in surviving.items() if step > 100)

    log = namespace.batch_log("damaged")
    owners = {step: trail.state.owner(step) for step in surviving}
    for rank in (0, 1):
        read = Counter(entry.window for one, entry in log if one == rank and owners.get(entry.step) == entry.attempt)
        assert read == Counter(trained)
        assert not any(entry.window in skipped for one, entry in log if one == rank and entry.attempt > 1)


def test_damage_in_the_very_last_steps_is_judged_before_the_processes_may_exit(late: HeadStart) -> None:
    """The run finishes its steps, and is rolled back all the same."""
    namespace = late()
    namespace.wait_phase("late", "Completed")

    trail = namespace.trail("late")
    (opened,) = trail.of("IncidentOpened")
    assert (opened.after or {})["latch"]["first_bad_step"] == 196
    surviving = namespace.surviving("late")
    assert sorted(surviving) == list(range(1, 201))
    assert not {record.window for record in surviving.values()} & set(range(195, 200))
