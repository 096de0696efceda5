"""The extent of the damage, from losses measured on the restored state."""

import math
from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_states import incident, latch, reference, run_state
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.evidence import ProbeEvidence
from trimtab_operator.extent import HEALTHY_RUN, Extent, ExtentOutcome, control_windows, find_extent

CONTROL = tuple((window, 2.0 + 0.1 * (window % 3 - 1)) for window in range(148, 180))
FLAGGED = (180, 182)


def probe(
    bad: Iterable[int] = (),
    *,
    probed: int = 32,
    control: tuple[tuple[int, float | None], ...] = CONTROL,
    losses: Mapping[int, float | None] | None = None,
) -> ProbeEvidence:
    """Losses of the flagged windows and `probed` more; those of `bad` are 9."""
    wrong = dict.fromkeys(bad, 9.0) | dict(losses or {})
    windows = tuple((window, wrong.get(window, 2.0)) for window in range(FLAGGED[0], FLAGGED[1] + probed + 1))
    return ProbeEvidence(attempt=2, state=None, windows=windows, control=control)


def extent(evidence: ProbeEvidence, **changes: object) -> Extent:
    settings = {"before": 1, "after": 2, "sigma": 4.0, "control_limit": 4.0, "shrink": True, **changes}
    return find_extent(evidence, flagged=FLAGGED, **settings)  # pyright: ignore[reportArgumentType] settings vary


@pytest.mark.parametrize(
    ("bad", "first", "last"),
    [
        (range(180, 183), 179, 184),
        (range(180, 190), 179, 191),
        ({180, 181, 182, 188}, 179, 190),
        ({180, 181, 182, 189, 196}, 179, 198),
        (range(182, 186), 181, 187),
        ((), 179, 184),
    ],
    ids=["as flagged", "longer", "a gap of five", "two gaps", "the first flagged were fine", "nothing measured bad"],
)
def test_the_damage_ends_before_eight_healthy_windows_in_a_row(bad: Iterable[int], first: int, last: int) -> None:
    found = extent(probe(bad))
    assert (found.outcome, found.first, found.last) == (ExtentOutcome.FOUND, first, last)


def test_eight_healthy_windows_end_the_search_even_if_bad_ones_follow() -> None:
    assert extent(probe({180, 181, 182, 191})).last == 184
    assert extent(probe({180, 181, 182, 190})).last == 192


def test_windows_trained_after_the_firing_are_judged_like_those_that_follow() -> None:
    assert extent(probe(range(180, 200))).last == 201


def test_a_rule_that_is_not_on_loss_may_extend_the_range_and_never_shrinks_it() -> None:
    assert extent(probe(range(182, 186)), shrink=False).first == 179
    assert extent(probe((), losses={}), shrink=False).last == 184
    assert extent(probe(range(180, 190)), shrink=False).last == 191


def test_damage_without_an_end_is_unbounded() -> None:
    assert extent(probe(range(180, 300))).outcome is ExtentOutcome.UNBOUNDED
    seven_healthy = probe(range(180, 208), probed=32)
    assert extent(seven_healthy).outcome is ExtentOutcome.UNBOUNDED
    assert f"no {HEALTHY_RUN} healthy windows in a row behind window 182" in extent(seven_healthy).message
    assert extent(probe(range(180, 207), probed=32)).outcome is ExtentOutcome.FOUND


@pytest.mark.parametrize("loss", [None, math.nan, math.inf])
def test_a_non_finite_window_is_bad_and_a_non_finite_control_is_a_bad_state(loss: float | None) -> None:
    assert extent(probe({180, 181, 182}, losses={187: loss})).last == 189
    bad = ((170, loss), *CONTROL[1:])
    assert extent(probe(control=bad)).outcome is ExtentOutcome.CONTROL_BAD


def test_a_control_above_the_limit_is_a_bad_state() -> None:
    high = tuple((window, 4.1) for window, _ in CONTROL)
    found = extent(probe(control=high))
    assert found.outcome is ExtentOutcome.CONTROL_BAD
    assert "mean loss 4.1000 against a limit of 4.0000, 0 of 32 non-finite" in found.message
    assert extent(probe(control=high), control_limit=None).outcome is ExtentOutcome.FOUND
    assert extent(probe(control=high), control_limit=4.1000001).outcome is ExtentOutcome.FOUND


@pytest.mark.parametrize("count", [0, 1, 7])
def test_with_fewer_than_eight_control_windows_only_non_finite_counts(count: int) -> None:
    few = CONTROL[:count]
    assert extent(probe(range(180, 190), control=few)).last == 184
    assert extent(probe(range(180, 190), losses={185: None}, control=few)).last == 187
    assert extent(probe(range(180, 190), control=CONTROL[:8])).last == 191


def test_the_rules_own_sigma_sets_the_threshold_and_four_is_the_default() -> None:
    narrow = extent(probe(), sigma=1.0)
    assert narrow.threshold == pytest.approx(narrow.control_mean + narrow.control_std)
    assert extent(probe(), sigma=None).threshold == pytest.approx(extent(probe(), sigma=4.0).threshold)


def test_the_border_never_reaches_before_the_first_window() -> None:
    evidence = ProbeEvidence(
        attempt=2, state=None, windows=tuple((window, 9.0 if window < 3 else 2.0) for window in range(20)), control=()
    )
    found = find_extent(evidence, flagged=(0, 2), before=5, after=0, sigma=None, control_limit=None, shrink=True)
    assert (found.first, found.last) == (0, 2)


@given(st.sets(st.integers(180, 214)), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_a_range_that_was_found_covers_what_was_flagged_and_bad_and_little_more(
    bad: set[int], before: int, after: int, shrink: bool
) -> None:
    found = extent(probe(bad), before=before, after=after, shrink=shrink)
    if found.outcome is ExtentOutcome.FOUND:
        assert found.last >= FLAGGED[1] + after
        assert found.last - after in {FLAGGED[1], *bad}
        assert all(window <= found.last - after for window in found.bad)
        assert found.first + before in {*bad, FLAGGED[0], FLAGGED[1]}
        healthy = range(found.last - after + 1, found.last - after + 1 + HEALTHY_RUN)
        assert not bad & set(healthy)
        assert not {window for window in bad if FLAGGED[0] <= window <= found.last} - set(
            range(found.first, found.last + 1)
        )
    if not shrink:
        assert found.first <= FLAGGED[0] - before


@given(st.integers(0, 120), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20)), max_size=4))
def test_the_control_is_the_last_32_windows_before_the_flagged_that_are_in_no_skip(
    first_flagged: int, pairs: list[tuple[int, int]]
) -> None:
    ledger = SkipLedger.of(tuple((first, first + length) for first, length in pairs))
    eligible = [window for window in range(first_flagged) if window not in ledger]
    assert list(control_windows(first_flagged, ledger)) == eligible[-32:]


FALLING = tuple((window, 4.5 + 0.1 * (window % 3)) for window in range(20, 44))
"""A control on an early state of a run whose loss still falls: above where the rule fires later, and healthy."""


def test_a_state_as_good_as_the_run_was_at_its_step_is_not_bad_for_being_an_early_one() -> None:
    assert extent(probe(control=FALLING)).outcome is ExtentOutcome.CONTROL_BAD
    assert extent(probe(control=FALLING), level=4.55).outcome is ExtentOutcome.FOUND
    nonfinite = (*FALLING[:-1], (43, None))
    assert extent(probe(control=nonfinite), level=4.55).outcome is ExtentOutcome.CONTROL_BAD


def test_a_state_that_is_worse_than_an_earlier_one_is_bad() -> None:
    """A loss that climbs was lower before: the level is the lowest one that is known up to the step."""
    found = extent(probe(control=FALLING), level=2.0)
    assert found.outcome is ExtentOutcome.CONTROL_BAD
    assert "against a limit of 4.0000" in found.message


def test_what_an_earlier_incident_flagged_and_a_person_let_stand_is_no_control() -> None:
    """A pause let go in the midst of the damage: what it flagged would lift the limit above the rest of it."""
    let_go = incident(latch=latch(first_bad_step=101, flagged=(100, 101)), held_step=104)
    let_go = msgspec.structs.replace(let_go, outcome="Resumed")
    state = run_state(closed=(let_go,))
    assert list(control_windows(104, state.doubtful)) == list(range(68, 100))
    mended = msgspec.structs.replace(let_go, plans=incident(targets=(reference(90),)).plans).put_in_place()
    assert list(control_windows(104, run_state(closed=(mended,)).doubtful)) == list(range(72, 104))
