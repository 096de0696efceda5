"""The verdicts on one record -> one action."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab_policies.policy import AcceptedPolicy, Mode
from trimtab_policies.rules import Action
from trimtab_policies.verdicts import State, Verdict


@dataclass(frozen=True, slots=True)
class Decision:
    """The strongest action any firing rule may take, and who asked for it.

    `action` is None when nothing fires. `would_have` is what the winner would have done had it been allowed to act,
    None where it was. `also` are the other firing verdicts, in order.
    """

    action: Action | None = None
    winner: Verdict | None = None
    would_have: Action | None = None
    also: tuple[Verdict, ...] = ()

    @property
    def policy(self) -> AcceptedPolicy | None:
        """The winner's policy: it supplies the remediation."""
        return self.winner.policy if self.winner else None


def allowed_action(verdict: Verdict, guard_mode: Mode) -> Action:
    """What a firing verdict may do: Observe, of the policy or of the job, turns everything into Record."""
    enforced = verdict.policy.mode is Mode.ENFORCE and guard_mode is Mode.ENFORCE
    return verdict.action if enforced else Action.RECORD


def decide(verdicts: Sequence[Verdict], *, guard_mode: Mode) -> Decision:
    """The highest allowed action wins, ties by order; only Firing acts."""
    firing = [verdict for verdict in verdicts if verdict.state is State.FIRING]
    if not firing:
        return Decision()
    winner = max(firing, key=lambda verdict: allowed_action(verdict, guard_mode).severity)
    action = allowed_action(winner, guard_mode)
    would_have = winner.action if winner.action is not action else None
    return Decision(action, winner, would_have, tuple(verdict for verdict in firing if verdict is not winner))
