"""Operators that are wrong in one way each: what checks schedules must catch them."""

from dataclasses import replace

import msgspec
from scripted_operator import ScriptedOperator
from trimtab_contract.directives import Directive
from trimtab_operator.commands import Append, Command
from trimtab_operator.errors import OperatorError
from trimtab_operator.observation import Observation
from trimtab_operator.run_state import CheckpointState, PendingEffect, RunPhase, RunState


class ActsBeforeItsIntent(ScriptedOperator):
    """Carries an effect out first and writes it down afterwards."""

    def append(self, command: Append) -> None:
        after = command.draft.after or {}
        if command.draft.phase is not None and "directive" in after:
            self.run.publish(msgspec.convert(msgspec.to_builtins(after["directive"]), type=Directive))
        super().append(command)


class ForgetsTheSkipOnRetry(ScriptedOperator):
    """Rebuilds the directive of an unfinished effect, without the ledger, instead of repeating it."""

    @property
    def besides(self) -> tuple[object, ...]:
        """Whether another one led before."""
        return (self.lease.epoch > 1,)

    def perform(self, effect: PendingEffect) -> None:
        state = self.journal.state
        (taken_over,) = self.besides
        if taken_over and state.directive is not None and state.directive.skip:
            self.journal.state = replace(state, directive=msgspec.structs.replace(state.directive, skip=()))
        super().perform(effect)


class SettlesAfterDeciding(ScriptedOperator):
    """Settles a lost reply only when the next record, decided without it, is to be written."""

    def settle(self) -> None:
        return

    def append(self, command: Append) -> None:
        super().settle()
        super().append(command)


class ReportsDoneWhatFailed(ScriptedOperator):
    """Takes an effect that failed for one that was done."""

    goes_on = True

    def perform(self, effect: PendingEffect) -> None:
        try:
            super().perform(effect)
        except OperatorError:
            return


class TrustsWhatIsQuarantined(ScriptedOperator):
    """Takes the newest checkpoint, though it was taken after the first bad step."""

    def decide(self, state: RunState, observation: Observation) -> Command | None:
        if state.phase in {RunPhase.SELECTING, RunPhase.RESTORING} and state.incident is not None:
            latch = msgspec.structs.replace(state.incident.latch, first_bad_step=100)
            trusted = (msgspec.structs.replace(one, state=CheckpointState.VERIFIED) for one in state.checkpoints)
            incident = msgspec.structs.replace(state.incident, latch=latch)
            state = replace(state, checkpoints=tuple(trusted), incident=incident)
        return super().decide(state, observation)
