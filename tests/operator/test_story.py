"""What people are told: every action of a run has a sentence of its own, and no text of a trainer can play tricks."""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from played_trainer import Scenario
from scripted_operator import play
from scripted_world import ScriptedRun
from trimtab_contract.directives import Reason as Ending
from trimtab_contract.journal import Actor, JournalRecord, Phase
from trimtab_operator.adapters.ports import EventType
from trimtab_operator.incidents import Vitals, Wishes
from trimtab_operator.observation import MissingMetric
from trimtab_operator.reasons import Reason
from trimtab_operator.run_state import JournalAction
from trimtab_operator.story import event_of, printable, sentence

DAMAGED = Scenario(steps=30, damaged=frozenset(range(14, 18)))


VITALS = Vitals(
    records=20, loss_mean=2.0, loss_std=0.1, clip_records=0, clip_rate=None, speed_records=0, tokens_per_second=None
)


def crash(run: ScriptedRun) -> None:
    if run.ticks == 8:
        run.world.die(Ending.PEER_LOST)


def suspend(run: ScriptedRun) -> None:
    run.suspend = run.ticks >= 8


def hang(run: ScriptedRun) -> None:
    run.world.hung = run.world.hung or run.ticks == 8


def blind(run: ScriptedRun) -> None:
    run.missing = (
        MissingMetric(policy="GuardPolicy/guard", rule="guard/high", metric="los", message="did you mean loss?"),
    )


def told_by_runs() -> list[JournalRecord]:
    """Records of runs that between them do everything."""
    runs = [
        play(DAMAGED),
        play(Scenario(steps=32, latent=(8, 22), margin=3)),
        play(replace(DAMAGED, unrestorable=frozenset({10}))),
        play(Scenario(steps=30, damaged=frozenset(range(14, 200)))),
        play(replace(DAMAGED, action="Stop")),
        play(replace(DAMAGED, steps=40, healthy=VITALS, vitals=(msgspec.structs.replace(VITALS, loss_mean=9.0),))),
        play(replace(DAMAGED, action="Pause", answers=(("StartWorld", "Resume"), ("Held", "Rollback")))),
        play(replace(DAMAGED, refuses_skips=True)),
        play(Scenario(steps=20, answers=(("WorldRunning", "Skip", Wishes(skip=(15, 16))),))),
        play(replace(DAMAGED, approval=9, answers=(("TargetSelected", "Approve"),))),
        play(Scenario(bad_config=True), on_tick=lambda run: setattr(run, "generation", 1 + (run.ticks > 8))),
        play(Scenario(steps=20), on_tick=crash),
        play(Scenario(steps=20), on_tick=blind),
        play(Scenario(steps=20), on_tick=lambda run: setattr(run.world, "hung", run.ticks == 8 or run.world.hung)),
    ]
    return [record for run in runs for record in run.announced]


def fact(action: JournalAction, **fields: object) -> JournalRecord:
    base: dict[str, object] = {
        "seq": 1,
        "prev": "0",
        "id": "x",
        "time": "2026-01-01T00:00:00+00:00",
        "actor": Actor(service_account="s", pod="p", pod_uid="u", image="i", epoch=1),
        "action": action.value,
    }
    return JournalRecord(**{**base, **fields})  # pyright: ignore[reportArgumentType] fields vary


def test_every_record_of_a_run_is_told_in_more_than_its_name() -> None:
    seen: set[str] = set()
    for record in told_by_runs():
        text = sentence(record)
        seen.add(record.action)
        assert text not in {"", record.action}, record
        assert "None" not in text, text
        assert not text.rstrip().endswith(":"), text
        assert len(text.split()) >= (1 if record.phase is Phase.RESULT else 3), text
    # A played run has one rule, and its job outlives it; it is alone and too short for what comes after long.
    alone = {"AutomationHeld", "AutomationReleased", "NoticeSent", "Snapshot", "Deleting", "ReadBack"}
    assert {action.value for action in JournalAction} - seen == {"RuleFired", "RunEnded", "Upgraded", *alone}


def test_the_story_of_an_incident_names_its_numbers() -> None:
    told = [sentence(record) for record in play(DAMAGED).announced if record.phase is not Phase.RESULT]
    story = "\n".join(told)
    for words in (
        "guard generation 1 (Enforce) judges from step 1 of attempt 1 on",
        "world 1 starts from the seed",
        "world 1 trains",
        "every rank holds after step",
        "replicas agree",
        "Undecided: replicas agree; nothing proves a transient fault",
        "step 10: the newest trustworthy one at or before step 10",
        "step 10 is restored as attempt 2",
        "skip windows 13 to 19: 4 of",
        "resume behind step 10, skipping windows 13 to 19",
        "all rules green up to step",
        "all 30 steps are trained and judged",
    ):
        assert words in story, words


def test_a_rule_that_only_observed_says_what_it_would_have_done() -> None:
    record = fact(
        JournalAction.RULE_FIRED,
        reason={"message": "loss 9 > 4"},
        after={"rule": "guard/loss-spike", "attempt": 1, "step": 5, "action": "Record", "would_have": "Rollback"},
    )
    assert sentence(record) == "guard/loss-spike: loss 9 > 4 (would have: Rollback)"


def test_every_event_has_a_constant_reason_and_results_are_not_repeated() -> None:
    for record in told_by_runs():
        event = event_of(record)
        if record.phase is Phase.RESULT:
            assert event is None
        if event is not None:
            kind, reason, message = event
            assert kind in set(EventType)
            assert reason in set(Reason)
            assert message == printable(message)


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "a\nb", "a\rb", "a\x00b", "a\u202eb", "a\u200bb", "a\x9bb", "a\u2028b", "a\ud800b"]
)
def test_control_characters_are_replaced(text: str) -> None:
    safe = printable(text)
    assert safe[0] == "a"
    assert safe[-1] == "b"
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in safe)


def test_ordinary_words_of_any_language_stay_and_length_is_bounded() -> None:
    assert printable("Verlust 9,1 > 4 – größer 損失") == "Verlust 9,1 > 4 – größer 損失"
    assert printable("x" * 900) == "x" * 900
    assert printable("x" * 901) == "x" * 899 + "…"
    assert len(printable("x" * 10_000, 50)) == 50


def test_what_a_trainer_says_is_made_safe_in_events() -> None:
    record = fact(JournalAction.FAILED, reason={"message": "BadConfig: \x1b]0;owned\x07" + "y" * 5000})
    event = event_of(record)
    assert event is not None
    assert "\x1b" not in event[2]
    assert len(event[2]) <= 900


@pytest.mark.parametrize(
    ("why", "kind", "reason"),
    [
        ("Suspended", EventType.NORMAL, Reason.SUSPENDED),
        ("Edited", EventType.NORMAL, Reason.WORLD_REPLACED),
        ("RunFailed", EventType.NORMAL, Reason.FAILED),
        ("no progress for 60 s", EventType.WARNING, Reason.WORLD_HUNG),
    ],
)
def test_a_world_that_is_told_to_end_says_why(why: str, kind: EventType, reason: Reason) -> None:
    record = fact(JournalAction.END_WORLD, phase=Phase.INTENT, after={"world": 2, "why": why}, reason={"message": why})
    assert event_of(record) == (kind, reason, f"world 2 is told to end: {why}")


def test_a_blind_rule_is_told_once_as_a_warning() -> None:
    told = [one for one in play(Scenario(steps=20), on_tick=blind).announced if one.action == "MetricMissing"]
    assert [event_of(one) for one in told] == [(EventType.WARNING, Reason.METRIC_MISSING, "did you mean loss?")]


@pytest.mark.parametrize(
    ("reason", "told", "says"),
    [
        ("Edited", "Edited", "world 1 has ended (Edited)"),
        ("Crashed", "Crashed: out of memory", "world 1 has ended (Crashed): out of memory"),
        ("Hung", "no progress for 60 s", "world 1 has ended (Hung): no progress for 60 s"),
    ],
)
def test_how_a_world_ended_is_said_once(reason: str, told: str, says: str) -> None:
    record = fact(JournalAction.WORLD_LOST, after={"world": 1, "reason": reason}, reason={"message": told})
    assert sentence(record) == says


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (suspend, "(Suspended): spec.suspend is true"),
        (hang, "(Hung): no progress"),
    ],
)
def test_a_world_that_was_told_to_end_has_ended_for_what_it_was_told(
    happens: Callable[[ScriptedRun], None], says: str
) -> None:
    told = [sentence(one) for one in play(Scenario(steps=20), on_tick=happens).announced if one.action == "WorldLost"]
    assert told[0] == f"world 1 has ended {says}"
