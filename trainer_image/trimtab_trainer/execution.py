"""Carrying out directives at a step boundary: hold, restore, diagnose, resume, stop.

Every rank runs this with the same directive at the same boundary, so all ranks take the same way through it.
"""

from dataclasses import dataclass

import msgspec
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import (
    AckState,
    Action,
    CheckpointReference,
    Diagnose,
    Directive,
    EvidenceReference,
    Reason,
    ReplicaReport,
)

from trimtab_trainer.checkpointing.reasons import RestoreFailure
from trimtab_trainer.directives import Refusal, instruct
from trimtab_trainer.errors import RestoreFailed, WorldEnded
from trimtab_trainer.evidence import ProbeResult, probe
from trimtab_trainer.replicas import compare_replicas, nonfinite_tensors
from trimtab_trainer.restoration import restore
from trimtab_trainer.runtime import Runtime

_FAULTS_ELSEWHERE: dict[str, Reason] = {
    Reason.PROBE_FAILED: Reason.PROBE_FAILED,
    Reason.CONFIG_MISMATCH: Reason.CONFIG_MISMATCH,
    RestoreFailure.STRUCTURE_MISMATCH: Reason.CONFIG_MISMATCH,
    RestoreFailure.NEWER_SCHEMA: Reason.CONFIG_MISMATCH,
    RestoreFailure.STORE_UNAVAILABLE: Reason.STORE_UNAVAILABLE,
    RestoreFailure.STORE_REFUSED: Reason.STORE_UNAVAILABLE,
}
"""What the operator is told where it matters to it; of every other failure the checkpoint itself is the cause."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a world says of itself beside its situation."""

    state: AckState
    detail: str = ""
    reason: Reason | None = None
    checkpoint: CheckpointReference | None = None
    replicas: ReplicaReport | None = None
    nonfinite: tuple[str, ...] | None = None
    evidence: EvidenceReference | None = None


class DirectiveExecutor:
    """Obeys directives and keeps a held world alive."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state = runtime.state
        self._holding = True
        self._said = Statement(AckState.WAITING)
        self._failure: Statement | None = None
        self._evidence: dict[tuple[int, int, Diagnose], ProbeResult] = {}
        self._kept: set[tuple[int, int]] = set()

    def announce(self, state: AckState) -> None:
        """Say so, and repeat it until the next statement."""
        self._say(Statement(state))

    def hold_by_itself(self, bad: str) -> None:
        """Hold after a non-finite step, without anyone's word; `bad` names what was not finite, rank by rank."""
        self._compare_replicas()
        self._say(
            Statement(
                AckState.HOLDING,
                detail=f"non-finite: {bad}",
                reason=Reason.NON_FINITE,
                replicas=self._state.replicas,
                nonfinite=self._scan(),
            )
        )
        # From here on: a Run that arrived during the step and only repeats the old one must not free the world.
        self._holding = True

    def wait(self) -> None:
        """Stay at this boundary until a Run is obeyed; ranks exchange a few numbers several times a second.

        Raises:
            WorldEnded: stopped, finished, superseded or terminated meanwhile.
            PeerLost: another rank is gone.
        """
        vitals = self._runtime.vitals
        self._holding = vitals.held = True
        self._runtime.archive_now()
        training = False
        while not training:
            vitals.advance()
            self._runtime.collect_checkpoint_events()
            directive, terminating = self._runtime.pulse()
            if terminating:
                self.terminate()
            if directive is not None:
                training = self.obey(directive)
        self._holding = vitals.held = False

    def obey(self, directive: Directive) -> bool:
        """Carry out a directive; returns whether the world trains afterwards.

        Raises:
            WorldEnded: the directive was Stop or Finish.
            PeerLost: another rank is gone.
        """
        state = self._state
        if state.directive is not None and directive.reaffirms(state.directive):
            state.directive = directive
            self._say(self._said)
            return not self._holding
        instruction = instruct(state.standing(), directive)
        if isinstance(instruction, Refusal):
            self._refuse(directive, instruction)
            return not self._holding
        if instruction.restore is not None and directive.incident is not None:
            self._keep_suspect(self._scan())
        state.directive = directive
        if instruction.action is Action.STOP:
            raise WorldEnded(Reason.STOPPED)
        if instruction.action is Action.FINISH:
            raise WorldEnded(Reason.FINISHED)
        if instruction.restore is not None:
            self._restore(directive, instruction.restore)
        elif instruction.initialise:
            self._initialise(directive)
        elif state.ready:
            state.ledger = SkipLedger.of(directive.skip)
        if instruction.action is Action.RUN:
            self._run()
            return True
        self._hold(directive)
        return False

    def terminate(self) -> None:
        """End because some rank was told to: save together first, unless the state is suspect.

        Raises:
            WorldEnded: always; Terminated only when nothing had to be saved or the save is complete.
        """
        state = self._state
        if not state.ready or state.withheld_in_a_row or (self._holding and state.in_incident):
            raise WorldEnded(Reason.TERMINATED, "nothing was saved: the state is not one to go on from")
        if state.replicas_differ:
            raise WorldEnded(Reason.TERMINATED, "nothing was saved: the replicas differ")
        saved = self._runtime.save_now("Terminated")
        if saved is None:
            raise WorldEnded(Reason.CRASHED, "terminated, and the state could not be saved")
        raise WorldEnded(Reason.TERMINATED, saved=saved)

    def _initialise(self, directive: Directive) -> None:
        """Begin the run: the weights come from the seed, and the state before the first step is saved too."""
        state = self._state
        state.attempt, state.ready = directive.attempt, True
        state.ledger = SkipLedger.of(directive.skip)
        self._runtime.save("Initial")

    def _restore(self, directive: Directive, target: CheckpointReference) -> None:
        state = self._state
        state.attempt, state.ready = directive.attempt, False
        state.tried.add(directive.attempt)
        self._failure = None
        self._say(Statement(AckState.RESTORING, checkpoint=target))
        try:
            restore(self._runtime, target, SkipLedger.of(directive.skip))
        except RestoreFailed as error:
            reason = _FAULTS_ELSEWHERE.get(str(error.reason), Reason.RESTORE_FAILED)
            self._failure = Statement(AckState.FAILED, detail=str(error), reason=reason, checkpoint=target)

    def _run(self) -> None:
        self._state.self_held = False
        if self._state.step < self._state.steps:
            self.announce(AckState.RUNNING)

    def _hold(self, directive: Directive) -> None:
        """Answer a Hold: with the failure of its restore, its evidence, its restored state, or the replicas."""
        state = self._state
        if not state.ready and self._failure is not None:
            self._say(self._failure)
            return
        restored = state.restored
        # Every directive of an attempt repeats its restore; only before the first step is that the answer to a Hold.
        if state.ready and restored is not None and restored.step == state.step:
            self._say(Statement(AckState.RESTORED, checkpoint=restored))
        else:
            self._compare_replicas()
            reason = Reason.NON_FINITE if state.self_held else None
            detail = self._said.detail if state.self_held else ""
            nonfinite = self._scan()
            self._say(
                Statement(AckState.HOLDING, detail=detail, reason=reason, replicas=state.replicas, nonfinite=nonfinite)
            )
            # Whoever only holds wants nothing to be put in its place; whoever has it measured soon will.
            if directive.incident is not None and directive.diagnose is not None:
                self._keep_suspect(nonfinite)
        if directive.diagnose is not None and state.ready:
            measured = restored if restored is not None and restored.step == state.step else None
            evidence = self._diagnose(directive.diagnose, measured)
            if evidence is not None:
                self._say(Statement(AckState.DIAGNOSED, checkpoint=measured, evidence=evidence))

    def _keep_suspect(self, nonfinite: tuple[str, ...] | None) -> None:
        """Once per state that was trained and is sound: store it in the background, before it is overwritten.

        Nothing waits for it.
        """
        state, key = self._state, (self._state.attempt, self._state.step)
        as_restored = state.restored is not None and state.restored.step == state.step
        if nonfinite == () and not state.replicas_differ and not as_restored and key not in self._kept:
            self._kept.add(key)
            self._runtime.save("Suspect")

    def _diagnose(self, diagnose: Diagnose, measured: CheckpointReference | None) -> EvidenceReference | None:
        """Measure once per state and set of windows; repeated directives get the same evidence.

        A suspect state is measured until there is something else to do, which then comes first: nothing waits for its
        evidence. What a restored state (`measured`) is worth must be known before anybody goes on from it. Returns
        None when nothing was measured, or nothing could be stored.
        """
        state, runtime = self._state, self._runtime
        key = (state.attempt, state.step, diagnose)
        if key not in self._evidence:
            result = probe(
                diagnose,
                run=runtime.environment.run,
                root=runtime.environment.checkpoint_root,
                attempt=state.attempt,
                step=state.step,
                state=measured,
                loss_of_share=runtime.loss_of_share,
                world=runtime.world,
                called_away=None if measured is not None else runtime.called_away,
            )
            if result is None:
                return None
            self._evidence[key] = result
        result = self._evidence[key]
        return result.reference if runtime.store_evidence(result, patient=measured is not None) else None

    def _compare_replicas(self) -> None:
        """Once per hold. A difference found earlier stays: replicas that are all NaN look alike.

        Where the state is sharded, no rank has what another has.
        """
        if self._runtime.config.parallelism == "sharded":
            return
        if self._state.ready and not self._holding and not self._state.replicas_differ:
            self._state.replicas = compare_replicas(self._runtime.trainee.named_parameters(), self._runtime.world)

    def _scan(self) -> tuple[str, ...] | None:
        """Whether the state itself is finite: a withheld update must have left it so."""
        if not self._state.ready:
            return None
        return nonfinite_tensors(self._runtime.training_state, self._runtime.world)

    def _refuse(self, directive: Directive, refusal: Refusal) -> None:
        ack = self._runtime.ack(AckState.REFUSED, directive.order)
        self._runtime.happened(msgspec.structs.replace(ack, reason=str(refusal.reason or ""), detail=refusal.detail))

    def _say(self, statement: Statement) -> None:
        self._said = statement
        ack = self._runtime.ack(statement.state, self._state.order)
        self._runtime.announce(
            msgspec.structs.replace(
                ack,
                detail=statement.detail,
                reason=str(statement.reason or ""),
                checkpoint=statement.checkpoint,
                replicas=statement.replicas,
                nonfinite=statement.nonfinite,
                evidence=statement.evidence,
            )
        )
