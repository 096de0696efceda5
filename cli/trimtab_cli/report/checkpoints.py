"""The checkpoints near an incident: how each got its state, and what the plans thought of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.journal import JournalRecord, Phase
from trimtab_operator.run_state import Checkpoint, CheckpointState, JournalAction, RunState

from trimtab_cli.report.episodes import Chapters
from trimtab_cli.report.span import Span
from trimtab_cli.report.views import CheckpointView

MOST_CHECKPOINTS = 200
DELETED = "Deleted"
"""What is shown of a checkpoint whose data are gone by now."""
_STATES = frozenset(state.value for state in CheckpointState)


def checkpoint_views(
    state: RunState, records: Sequence[JournalRecord], chapters: Chapters, span: Span
) -> tuple[tuple[CheckpointView, ...], int]:
    """The checkpoints in the span or considered by a plan, and how many others there are."""
    histories = _histories(records)
    thoughts = _thoughts(chapters)
    targets = {one.plan.target.key for one in chapters.plans}
    found: list[CheckpointView] = []
    gone = _deleted(state, records)
    every = sorted((*state.checkpoints, *gone), key=lambda one: (one.reference.step, one.attempt))
    for one in every:
        step, place = one.reference.step, (one.reference.step, one.attempt)
        near = span.first <= step <= span.last
        if not near and one.reference.key not in targets:
            continue
        found.append(
            CheckpointView(
                step=step,
                attempt=one.attempt,
                state=DELETED if one in gone else one.state.value,
                surviving=state.surviving(one),
                chosen=one.reference.key in targets,
                history=tuple(histories.get(one.reference.key, ())),
                thoughts=tuple(thoughts.get(place, ())),
            )
        )
    shown = found if len(found) <= MOST_CHECKPOINTS else [one for one in found if one.chosen or one.thoughts]
    shown = shown[-MOST_CHECKPOINTS:]
    return tuple(shown), len(every) - len(shown)


def _deleted(state: RunState, records: Iterable[JournalRecord]) -> list[Checkpoint]:
    """The checkpoints whose data are gone by now: they were there when plans considered them."""
    found: dict[str, Checkpoint] = {}
    for record in records:
        after = record.after or {}
        if record.action == JournalAction.DELETING and record.phase is Phase.INTENT and "checkpoint" in after:
            reference = msgspec.convert(after["checkpoint"], type=CheckpointReference)
            found[reference.key] = Checkpoint(
                reference=reference, attempt=int(after["attempt"]), state=CheckpointState.DELETING
            )
    return [one for key, one in found.items() if state.checkpoint(key) is None]


def _histories(records: Iterable[JournalRecord]) -> Mapping[str, list[tuple[str, str, str]]]:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for record in records:
        if record.action not in _STATES:
            continue
        after = record.after or {}
        try:
            key = msgspec.convert(after.get("checkpoint"), type=CheckpointReference).key
        except msgspec.ValidationError:
            continue  # A record that was tampered with; the proof names it.
        found.setdefault(key, []).append((record.time, record.action, str(after.get("why") or "")))
    return found


def _thoughts(chapters: Chapters) -> Mapping[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    for story in chapters.plans:
        for one in story.candidates:
            verdict = "chosen" if one.chosen else "not chosen"
            text = f"plan {story.plan.number}, then {one.state}: {verdict}, {one.why}"
            found.setdefault((one.step, one.attempt), []).append(text)
    return found
