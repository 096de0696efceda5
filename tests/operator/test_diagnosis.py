"""What losses on the held and on the restored state are consistent with, and what is said to be missing."""

from typing import Any

import msgspec
import pytest
from run_states import incident, latch, reference
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.evidence import ProbeEvidence
from trimtab_operator.diagnosis import MEASURED_WINDOWS, Diagnosis, diagnose_held, diagnose_restored, held_windows
from trimtab_operator.incidents import Finding, Incident, WithheldStep

FLAGGED = (180, 182)
FINE, BAD = 2.0, 9.0
HELD = incident(held_step=183, replicas_agree=True, state_finite=True)


def losses(control: float | None, flagged: float | None, *, windows: int = 32, state: Any = None) -> ProbeEvidence:
    """A probe; losses scatter a little, as they do."""

    def scattered(loss: float | None, window: int) -> float | None:
        return None if loss is None else loss + 0.1 * (window % 2)

    first = FLAGGED[0] - windows
    return ProbeEvidence(
        attempt=1,
        state=state,
        windows=tuple((window, scattered(flagged, window)) for window in range(FLAGGED[0], FLAGGED[1] + 1)),
        control=tuple((window, scattered(control, window)) for window in range(first, FLAGGED[0])),
    )


def both(suspect: ProbeEvidence | None, restored: ProbeEvidence, missing: str = "") -> Diagnosis:
    held = diagnose_held(HELD, suspect, missing)
    known = msgspec.structs.replace(HELD, finding=held.finding, missing=held.missing, suspect=held.suspect)
    return diagnose_restored(known, restored, FLAGGED)


@pytest.mark.parametrize(
    ("suspect", "restored", "finding"),
    [
        ((FINE, BAD), (FINE, BAD), Finding.BAD_BATCH),
        ((BAD, BAD), (FINE, BAD), Finding.BAD_BATCH),
        ((BAD, BAD), (FINE, FINE), Finding.BAD_STATE),
        ((None, None), (FINE, FINE), Finding.BAD_STATE),
        ((FINE, BAD), (FINE, FINE), Finding.INTERACTION),
        ((FINE, None), (FINE, FINE), Finding.INTERACTION),
        ((FINE, None), (FINE, None), Finding.BAD_BATCH),
        ((FINE, FINE), (FINE, BAD), Finding.UNDECIDED),
        ((FINE, FINE), (FINE, FINE), Finding.UNDECIDED),
        ((BAD, BAD), (BAD, BAD), Finding.UNDECIDED),
    ],
)
def test_each_pair_of_measurements_has_one_explanation_or_none(
    suspect: tuple[float | None, float | None], restored: tuple[float | None, float | None], finding: Finding
) -> None:
    found = both(losses(*suspect), losses(*restored, state=reference(170)))
    assert found.finding is finding
    assert found.missing == ()
    assert ("consistent with" in found.why) is (finding is not Finding.UNDECIDED)


def test_the_sentence_names_every_number_it_rests_on() -> None:
    found = both(losses(FINE, BAD), losses(FINE, BAD))
    assert found.suspect is not None
    assert found.suspect.threshold == pytest.approx(2.05 + 4 * 0.05)
    expected = (
        "of 3 flagged windows are bad (9.0000 9.1000 9.0000 against 2.2500; control mean 2.0500, std 0.0500 over 32)"
    )
    assert f"on the held state 3 {expected}" in found.why
    assert f"on the restored state 3 {expected}" in found.why


def test_what_was_not_measured_leaves_it_undecided_and_is_named() -> None:
    found = both(None, losses(FINE, BAD), "the suspect state is lost with its pods")
    assert found.finding is Finding.UNDECIDED
    assert found.missing == ("the suspect state is lost with its pods",)
    assert "on the restored state 3 of 3" in found.why


def test_with_few_control_windows_only_non_finite_losses_count_and_that_is_said() -> None:
    found = both(losses(FINE, BAD, windows=4), losses(FINE, BAD, windows=4))
    assert found.finding is Finding.UNDECIDED
    assert "fewer than 8 control windows" in found.missing[0]
    assert both(losses(FINE, None, windows=4), losses(FINE, None, windows=4)).finding is Finding.BAD_BATCH


def withheld(**changes: Any) -> Incident:
    step = WithheldStep(step=183, window=182, loss_finite=False)
    return msgspec.structs.replace(HELD, withheld=msgspec.structs.replace(step, **changes))


def test_a_withheld_batch_that_is_finite_on_the_same_state_is_transient() -> None:
    found = diagnose_held(withheld(), losses(FINE, FINE))
    assert found.finding is Finding.TRANSIENT
    assert "step 183 was withheld, and its window 182" in found.why
    assert "a loss of 2.0000 on the same untouched state" in found.why


@pytest.mark.parametrize(
    ("held", "probe"),
    [
        (withheld(), losses(FINE, None)),
        (withheld(), None),
        (withheld(step=182), losses(FINE, FINE)),
        (msgspec.structs.replace(withheld(), state_finite=False), losses(FINE, FINE)),
        (msgspec.structs.replace(withheld(), state_finite=None), losses(FINE, FINE)),
        (HELD, losses(FINE, FINE)),
    ],
)
def test_nothing_less_proves_a_transient_fault(held: Incident, probe: ProbeEvidence | None) -> None:
    assert diagnose_held(held, probe).finding is Finding.UNDECIDED


def test_a_gradient_that_was_not_finite_is_not_measured_again_by_a_forward_pass() -> None:
    found = diagnose_held(withheld(loss_finite=True), losses(FINE, FINE))
    assert found.finding is Finding.UNDECIDED
    assert found.missing == ("the gradient of the withheld step 183 was not computed again",)


def test_replicas_that_disagree_are_transient_whatever_is_measured() -> None:
    held = msgspec.structs.replace(HELD, replicas_agree=False)
    assert diagnose_held(held, None).finding is Finding.TRANSIENT


def test_replicas_that_were_not_compared_are_missing_evidence() -> None:
    held = msgspec.structs.replace(HELD, replicas_agree=None)
    assert diagnose_held(held, losses(FINE, BAD)).missing == ("the replicas of the held state were not compared",)


def test_only_the_first_flagged_windows_and_no_skipped_control_are_measured_while_every_rank_waits() -> None:
    asked = held_windows((100, 5000), SkipLedger(((90, 95),)))
    assert asked.windows == (100, 100 + MEASURED_WINDOWS - 1)
    assert len(asked.control) == 32
    assert not set(asked.control) & set(range(90, 96))


def test_a_rule_without_a_control_limit_finds_only_non_finite_controls_bad() -> None:
    held = msgspec.structs.replace(HELD, latch=latch(control_limit=None))
    assert diagnose_restored(held, losses(BAD, BAD), FLAGGED).restored == msgspec.structs.replace(
        both(None, losses(BAD, BAD)).restored or pytest.fail("not measured"), control_bad=False
    )
