"""The table of phases: every pair is legal or refused, and the state machine never asks for a refused one."""

from itertools import product

import pytest
from trimtab_operator.remediation import TRANSITIONS, IllegalTransition, check_transition
from trimtab_operator.run_state import RunPhase

LEGAL = {
    "Pending": "Watching Failed NeedsHuman Stopped",
    "Watching": "Holding Completed Failed NeedsHuman Stopped",
    "Holding": "Diagnosing Watching Probation Stopped",
    "Diagnosing": "Selecting Stopped",
    "Selecting": "AwaitingApproval Restoring NeedsHuman Stopped",
    "AwaitingApproval": "Restoring Selecting NeedsHuman Stopped",
    "Restoring": "DiagnosingRestored Selecting Failed Stopped",
    "DiagnosingRestored": "Probation Selecting Restoring AwaitingApproval NeedsHuman Failed Stopped",
    "Probation": "Watching Holding Completed Failed NeedsHuman Stopped",
    "NeedsHuman": "Selecting Watching Stopped",
    "Failed": "Pending Stopped",
    "Completed": "",
    "Stopped": "",
}


def test_every_pair_of_phases_is_legal_or_refused() -> None:
    assert set(LEGAL) == {phase.value for phase in RunPhase} == {phase.value for phase in TRANSITIONS}
    for before, after in product(RunPhase, RunPhase):
        if before is after or after.value in LEGAL[before.value].split():
            check_transition(before, after)
        else:
            with pytest.raises(IllegalTransition, match=f"phase {before} cannot become {after}"):
                check_transition(before, after)


def test_every_phase_but_the_last_ones_leads_to_an_end() -> None:
    ends = {RunPhase.COMPLETED, RunPhase.STOPPED}
    for phase in set(RunPhase) - ends:
        reached, frontier = {phase}, {phase}
        while frontier:
            frontier = {after for one in frontier for after in TRANSITIONS[one]} - reached
            reached |= frontier
        assert ends & reached


def test_a_refused_transition_can_pass_through_a_context_manager() -> None:
    """Exceptions get a traceback assigned on their way: a frozen one would hide what was wrong."""
    with pytest.raises(IllegalTransition) as refused:
        check_transition(RunPhase.COMPLETED, RunPhase.WATCHING)
    refused.value.__traceback__ = None
    assert (refused.value.before, refused.value.after) == (RunPhase.COMPLETED, RunPhase.WATCHING)
