"""The example of Hugging Face's Trainer as its page tells it: its files applied, its data damaged, and nobody told."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from training_jobs import CHECKPOINT_ROOT, DATA, ROOT, Namespace
from typed_commands import trimtab

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

NAME = "hugging-face"
EXAMPLE = ROOT / "examples" / NAME
DAMAGED = range(160, 172)
LOGITS = ("qk_max_logit", "qk_max_logit_bound")
"""As records have them: exact every `telemetry.every` steps and from an event on, and bounds between."""


@pytest.fixture
def data() -> Iterator[Path]:
    """The example's data, damaged; removed at the end."""
    path = DATA / f"{NAME}.bin"
    damage = ("--first", str(DAMAGED.start), "--count", str(len(DAMAGED)))
    for command in (("corpus", path), ("damage", path, *damage)):
        subprocess.run([sys.executable, ROOT / "examples" / "demo" / "prepare.py", *command], check=True)
    yield path
    path.unlink()


def test_the_example_is_held_by_a_person_rolled_back_by_itself_and_completes_without_its_damaged_data(
    namespace: Namespace, data: Path
) -> None:
    job = yaml.safe_load((EXAMPLE / "trainingjob.yaml").read_text())
    # Where data and checkpoints lie is the tests' own.
    (volume,) = [one for one in job["spec"]["podTemplate"]["volumes"] if one["name"] == "data"]
    volume["hostPath"]["path"] = str(data.parent)
    job["spec"]["checkpoint"]["uri"] = f"s3://training/{CHECKPOINT_ROOT}"
    namespace.cluster.kubectl("create", "configmap", NAME, f"--from-file={EXAMPLE / 'train.py'}")
    namespace.cluster.kubectl("apply", "-f", str(EXAMPLE / "guardpolicy.yaml"))
    namespace.apply(job)
    namespace.wait_step(NAME, 20)
    held = trimtab(namespace, "job", "hold", NAME, "--reason", "a look at it")
    assert held.returncode == 0, held.stderr
    namespace.wait_action(NAME, "Held")
    gone_on = trimtab(namespace, "job", "resume", NAME, "--reason", "it looks well")
    assert gone_on.returncode == 0, gone_on.stderr
    steps = job["spec"]["trainer"]["config"]["steps"]
    namespace.wait_phase(NAME, "Completed", seconds=500)

    trail = namespace.trail(NAME)
    story = [one.action for one in trail.of("Held", "IncidentOpened", "Restored", "IncidentClosed", "Completed")]
    assert story == ["Held", "IncidentOpened", "Held", "Restored", "IncidentClosed", "Completed"]
    (opened,) = trail.of("IncidentOpened")
    assert (opened.reason or {})["rule"] == "loss-spike"
    assert (opened.after or {})["latch"]["first_bad_step"] == DAMAGED.start + 1
    (target,) = trail.of("TargetSelected")
    assert (target.after or {})["plan"]["target"]["step"] <= DAMAGED.start
    (extent,) = trail.of("ExtentFound")
    skip = (extent.after or {})["skip"]
    assert skip["first"] <= DAMAGED.start
    assert skip["last"] >= DAMAGED.stop - 1
    assert [one.outcome for one in trail.of("IncidentClosed")] == ["Recovered"]
    assert {pod["metadata"]["labels"]["trimtab.dev/attempt"] for pod in namespace.pods(NAME)} == {"1"}

    surviving = namespace.surviving(NAME)
    assert sorted(surviving) == list(range(1, steps + 1))
    skipped = range(skip["first"], skip["last"] + 1)
    trained = [window for window in range(steps + len(skipped)) if window not in skipped]
    assert [surviving[step].window for step in sorted(surviving)] == trained
    assert surviving[steps].scalars["loss"] < surviving[1].scalars["loss"] - 2
    names = {step: next(name for name in LOGITS if name in one.vectors) for step, one in surviving.items()}
    assert {names[step] for step in surviving if step % 10 == 0} == {LOGITS[0]}
    logits = [surviving[step].vectors[names[step]] for step in sorted(surviving)]
    assert {one.shape for one in logits} == {(2, 4)}
    assert all("qk_clip_gamma" in record.vectors for record in surviving.values())
    assert max(logits[-1].values()) > 3 * max(logits[0].values())
