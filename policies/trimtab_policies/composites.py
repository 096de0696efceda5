"""`allOf` and `anyOf`: what other rules of the policy say about the same record -> what the composite says.

A component breaches when it fires, but for an absence that may do no more than pause (`onNoData: Pause`): it counts as
`NoData`, for only `onNoData: Breach` lets an absence lead to what the composite asks for. What a component cannot say
(`NoData`, `Pending`, `Error`) decides nothing: `allOf` is healthy once one component is, `anyOf` breaches once one
does, and else the composite says what the component says that cannot.
"""

from trimtab_policies.rules import OnNoData, Rule
from trimtab_policies.verdicts import Finding, Reason, State, Verdict

_SPEECHLESS = (State.ERROR, State.NO_DATA, State.PENDING)


def combine(rule: Rule, components: tuple[Verdict, ...]) -> Finding:
    """FIRING where the composite breaches at this record; `forRecords` is counted by the caller."""
    firing = [one for one in components if _breaches(one)]
    states = {_state(one) for one in components}
    enough = len(firing) == len(components) if rule.all_of else bool(firing)
    if enough:
        starts = [one.finding.first_bad for one in firing if one.finding.first_bad is not None]
        first = min(starts, key=lambda place: place.step) if starts else None
        return Finding(State.FIRING, Reason.COMPONENTS, first_bad=first, cause=firing[0], note=_names(rule, firing))
    if rule.all_of and State.HEALTHY in states:
        healthy = next(one for one in components if one.state is State.HEALTHY)
        return _within(f"{healthy.rule.name} does not fire (all of {', '.join(rule.components)})")
    for state in _SPEECHLESS:
        if state in states:
            silent = next(one for one in components if _state(one) is state)
            return Finding(state, silent.reason, cause=silent, note=f"rule {silent.rule.name} is {state.value}")
    kind = "all" if rule.all_of else "any"
    return _within(f"none fires ({kind} of {', '.join(rule.components)})")


def _within(note: str) -> Finding:
    return Finding(State.HEALTHY, Reason.WITHIN_LIMITS, note=note)


def _breaches(component: Verdict) -> bool:
    if component.state is not State.FIRING:
        return False
    return component.reason is not Reason.ABSENT_TOO_LONG or component.rule.on_no_data is OnNoData.BREACH


def _state(component: Verdict) -> State:
    pauses = component.state is State.FIRING and not _breaches(component)
    return State.NO_DATA if pauses else component.state


def _names(rule: Rule, firing: list[Verdict]) -> str:
    names = " and ".join(one.rule.name for one in firing)
    verb = "fires" if len(firing) == 1 else "fire"
    kind = "all" if rule.all_of else "any"
    return f"{names} {verb} ({kind} of {', '.join(rule.components)})"
