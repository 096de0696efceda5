"""What a world waits for until it trains, as people are told: its pods, and then its first words. Pure."""

from trimtab_contract.directives import AckState

from trimtab_operator.observation import Pods, PodsState
from trimtab_operator.run_state import RunState


def world_waits(state: RunState, pods: Pods, heard: AckState | None) -> str:
    """One sentence with numbers and the cluster's own reason; empty once there is nothing to wait for.

    `heard` is what the newest world last said of itself, None before its first word.
    """
    if not state.world_lives or pods.state is PodsState.ENDING or heard not in {None, AckState.WAITING}:
        return ""
    if heard is AckState.WAITING:
        return "every rank is ready and waits to be told to train"
    told = _pods_wait(pods)
    return f"{told}; {pods.trouble}" if told and pods.trouble else told or pods.trouble


def _pods_wait(pods: Pods) -> str:
    """How far the pods of a world are that has said nothing yet."""
    if not pods.wanted:
        return ""
    if pods.made < pods.wanted:
        return f"{pods.made} of {pods.wanted} pods are made"
    if pods.running < pods.wanted:
        why = "" if pods.trouble or not pods.starting else f" ({pods.starting})"
        return f"{pods.scheduled} of {pods.wanted} pods are scheduled, {pods.running} run{why}"
    return f"all {pods.wanted} pods run, and nothing was heard of their ranks yet"
