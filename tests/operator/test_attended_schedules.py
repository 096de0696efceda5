"""The operator interrupted around every append and every effect of runs that people have a hand in, once and in pairs.

As `test_crash_schedules`. And what makes both quick is proved here: a search that remembers where runs stood comes to
what the search comes to that plays every schedule to its end, with operators that are right and with one that is wrong.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from crash_scenarios import ATTENDED, PAIRED_WAYS, Enumeration, search
from played_trainer import Scenario
from scripted_operator import ScriptedOperator
from wrong_operators import (
    ActsBeforeItsIntent,
    ForgetsTheSkipOnRetry,
    ReportsDoneWhatFailed,
    SettlesAfterDeciding,
)


@pytest.fixture(scope="module")
def enumeration() -> Iterator[Enumeration]:
    """Prints what all scenarios of this module come to."""
    found = Enumeration()
    yield found
    print(f"\nattended runs: {found}")


@pytest.mark.parametrize("name", ATTENDED)
def test_one_interruption_or_two_anywhere_change_nothing(name: str, enumeration: Enumeration) -> None:
    enumeration.add(name)


# What makes it quick -------------------------------------------------------------------------------------------------

BRIEF = Scenario(steps=6, damaged=frozenset({3, 4, 5}), margin=1, before=0, probation=1, checkpoint_every=1, certify=2)
BRIEFER = replace(BRIEF, action="Stop")
"""Short enough that all its pairs can be played to their end."""
WRONG = (ActsBeforeItsIntent, ForgetsTheSkipOnRetry, SettlesAfterDeciding, ReportsDoneWhatFailed)


@pytest.mark.parametrize(
    ("scenario", "most", "operator"),
    [
        *((BRIEF, 1, operator) for operator in (ScriptedOperator, *WRONG)),
        *((BRIEFER, 2, operator) for operator in (ScriptedOperator, ActsBeforeItsIntent, ReportsDoneWhatFailed)),
    ],
)
def test_runs_known_from_where_they_stand_end_as_those_that_are_played_to_the_end(
    scenario: Scenario, most: int, operator: type[ScriptedOperator]
) -> None:
    known, played = (
        replace(search(scenario, PAIRED_WAYS, operator), remembers=remembers, stops=False)
        for remembers in (True, False)
    )
    counts = known.schedules(most)
    assert counts == played.schedules(most)
    wrong = [worse for _, worse in counts]
    assert bool(sum(wrong)) is (operator is not ScriptedOperator)
    print(f"{operator.__name__}: {counts[most][0]} schedules, violations {wrong}: {known.turns}, {played.turns} turns")
