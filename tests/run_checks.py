"""What must hold of every scripted run, whatever happened to it, and what two runs must have in common."""

from scripted_world import ScriptedRun, directive_of
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action
from trimtab_contract.journal import JournalRecord, Phase, effective, verify_chain
from trimtab_operator.remediation import check_transition
from trimtab_operator.run_state import CheckpointState, JournalAction, RequestAction, RequestState, RunPhase, RunState


def check(run: ScriptedRun, *, refuses: bool = False) -> None:
    """Every invariant of the remediation, over a whole run; `refuses` says that its trainer refuses a directive."""
    assert not run.violations, run.violations
    assert bool(run.refusals) is refuses, run.refusals
    bodies = sorted(run.store.bodies.items())
    report = verify_chain(bodies)
    assert report.intact, report.problems
    phase, state = RunPhase.PENDING, run.state
    counted = effective(run.announced)
    for index in range(len(counted)):
        after = (counted[index].after or {}).get("phase")
        if after is not None:
            check_transition(phase, RunPhase(after))
            phase = RunPhase(after)
    assert state.phase is phase
    intents = [one.id for one in counted if one.phase is Phase.INTENT]
    assert len(intents) == len(set(intents)), "an intent was written twice"
    opened = [one.incident for one in counted if one.action == JournalAction.INCIDENT_OPENED]
    assert len(opened) == len(set(opened)), "an incident was opened twice"
    _check_evidence(run, counted)
    if not refuses:
        _check_skips(run, state, counted)


def _check_evidence(run: ScriptedRun, counted: tuple[JournalRecord, ...]) -> None:
    """Every incident that no person asked for has a record that is bad: what is missing rolls nothing back."""
    for record in counted:
        if record.action not in {JournalAction.INCIDENT_OPENED, JournalAction.RELAPSED}:
            continue
        latch = (record.after or {})["latch"]
        if latch.get("asked") is not None or run.stronger is not None:
            continue
        line = run.records.get((latch["attempt"], latch["fired_step"]))
        bad = line is not None and (line.bad or line.nonfinite or line.mismatch)
        assert bad, f"{record.action} by {latch['rule']}, but no record is bad at step {latch['fired_step']}"


def _check_skips(run: ScriptedRun, state: RunState, counted: tuple[JournalRecord, ...]) -> None:
    """What was found bad is in the ledger, once and for ever, and is never trained on after it was skipped."""
    ledger: tuple[tuple[int, int], ...] = ()
    skipped_from: dict[int, int] = {}
    found = list(state.source.skip) if state.source is not None else []
    for record in counted:
        after = record.after or {}
        if record.action == JournalAction.EXTENT_FOUND:
            found.append((after["skip"]["first"], after["skip"]["last"]))
        if (wire := after.get("directive")) is None:
            continue
        directive = directive_of(wire)
        assert all(SkipLedger(directive.skip).__contains__(window) for pair in ledger for window in pair), (
            "a range left the ledger"
        )
        ledger = directive.skip
        if directive.action is Action.RUN:
            for first, last in directive.skip:
                for window in range(first, last + 1):
                    skipped_from.setdefault(window, directive.attempt)
    if state.phase in {RunPhase.PROBATION, RunPhase.WATCHING, RunPhase.COMPLETED}:
        found += _asked(state)
        final = SkipLedger(ledger)
        assert all(window in final for first, last in found for window in range(first, last + 1))
        assert ledger == SkipLedger.of(tuple(found)).ranges, "something else than what was found is skipped"
    for attempt, step, window in run.trained:
        assert skipped_from.get(window, attempt + 1) > attempt, f"window {window} was trained in a{attempt} s{step}"


def surviving_windows(run: ScriptedRun) -> list[int]:
    """The window of every step of the surviving history that the run has trained itself."""
    state = run.state
    continued = state.source.checkpoint.step if state.source is not None else 0
    own = (step for attempt, step in run.records if attempt == state.attempt)
    last = max(own, default=state.attempts[-1].branch_step)
    return [run.records[state.owner(step), step].window for step in range(continued + 1, last + 1)]


def story(run: ScriptedRun) -> list[tuple[str, str, str]]:
    """(action, phase, command index) of every record of an incident, checkpoint states left out."""
    states = {JournalAction(state.value) for state in CheckpointState}
    return [
        (one.action, one.phase.value if one.phase else "", one.id if one.phase else "")
        for one in effective(run.announced)
        if one.incident and one.action not in states
    ]


def decisions(run: ScriptedRun) -> list[tuple[object, ...]]:
    """Rule, first bad step, targets and skip range of every incident; when a person is heard is a matter of chance."""
    state = run.state
    return [
        (
            incident.name,
            incident.latch.rule,
            None if incident.latch.asked else incident.latch.first_bad_step,
            tuple(plan.target for plan in incident.plans),
            incident.extent,
            incident.finding,
            incident.outcome,
        )
        for incident in (*state.closed, *((state.incident,) if state.incident else ()))
    ]


def _asked(state: RunState) -> list[tuple[int, int]]:
    """The windows that people were promised to have skipped."""
    skips = [one for one in state.requests if one.action is RequestAction.SKIP]
    return [one.skip for one in skips if one.skip is not None and one.state is not RequestState.REFUSED]
