"""A run that diverges because of its learning rate: real processes train, the operator's own rules and phases decide.

The learning rate rises until training breaks, at about the same step whatever it is trained on. Going back and
skipping batches changes nothing about that. Nothing is played here but the cluster: two trainer processes, Redis and S3
are real, and so are the judgement of their records, the measurements on both states, and every decision.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from object_store_fixture import ObjectStoreServer
from played_trainer import Scenario
from redis_fixture import RedisServer
from scripted_operator import ScriptedOperator
from scripted_world import ScriptedRun, directive_of
from trainer_world import Run, World, until
from trimtab_contract import keys
from trimtab_contract.checkpoints import decode_manifest, sha256_hex
from trimtab_contract.directives import Ack, CheckpointReference, Directive, encode
from trimtab_contract.evidence import ProbeEvidence, decode_probe
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.incidents import Finding, PolicyIdentity
from trimtab_operator.judge import Judge
from trimtab_operator.observation import Acks, CheckpointClaim, Limits, Observation, Pods, PodsState
from trimtab_operator.probes import probe_trouble, suspect_trouble
from trimtab_operator.run_state import AcceptedGuard, RunPhase, RunState
from trimtab_policies.policy import AcceptedPolicy, parse_policy

pytestmark = pytest.mark.timeout(600)

BROKEN = 4.5
"""A loss well above what the run learns to (3.2), and far below what it breaks to."""
NEARBY = 15
OLD_ENOUGH = 35
"""The newest checkpoint that lies a margin behind the step at which training breaks."""
CHECKPOINT_EVERY = 5
CONFIG: dict[str, Any] = {
    "steps": 120,
    "optimizer": {"newtonSchulzDtype": "float32", "muonLr": 0.05, "adamwLr": 8.0},
    "schedule": {"warmupSteps": 110},
}


def policy(**remediation: Any) -> AcceptedPolicy:
    rule = {"name": "loss-high", "metric": "loss", "range": {"max": BROKEN}, "forRecords": 3, "afterSteps": 20}
    spec = parse_policy(
        {
            "rules": [{**rule, "action": "Rollback"}],
            "remediation": {
                "margin": 8,
                "escalate": {"marginFactor": 1},
                "probationSteps": 20,
                "skipBatches": {"before": 1, "after": 2, "probe": 16},
                **remediation,
            },
        }
    )
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="team", name="guard", uid="p", generation=1)


class TrainedRun(ScriptedRun):
    """What an operator reaches: a journal in memory, and a world of real processes with real Redis and S3."""

    def __init__(self, real: Run, guard: AcceptedPolicy, stack: ExitStack) -> None:
        super().__init__(Scenario(max_rollbacks=100))
        self.real = real
        self._stack = stack
        self._processes: dict[int, World] = {}
        self._evidence: dict[str, ProbeEvidence] = {}
        self._judging = Judge()
        self._judging.texts[guard.hash] = guard
        self._policy = PolicyIdentity(
            kind=guard.kind, namespace="team", name=guard.name, uid=guard.uid, generation=1, hash=guard.hash
        )

    def clock(self) -> str:
        return datetime.now(UTC).isoformat()

    def publish(self, directive: Directive) -> tuple[int, int]:
        order = super().publish(directive)
        with self.real.redis.client() as client:
            client.set(keys.directive_key(self.real.id), encode(directive))
        return order

    def create_job(self, world: int, attempt: int) -> None:
        assert world == attempt
        self._processes[world] = self._stack.enter_context(self.real.world(world))

    def pods(self, state: RunState) -> Pods:
        if state.world is None or state.world.number not in self._processes:
            return Pods(world=state.world.number if state.world else 0)
        alive = any(pod.poll() is None for pod in self._processes[state.world.number].pods)
        return Pods(world=state.world.number, state=PodsState.LIVE if alive else PodsState.GONE)

    def observe(self, state: RunState, acks: Acks, pods: Pods) -> Observation:
        judge = self._judging
        self._take(state)
        unknown = [reference for reference in acks.saved if state.checkpoint(reference.key) is None]
        guard = AcceptedGuard(
            policies=(self._policy,),
            mode="Enforce",
            from_attempt=max(1, state.attempt),
            from_step=judge.judged_step + 1,
        )
        return Observation(
            job="tiny",
            now=self.clock(),
            limits=Limits(
                max_rollbacks=100,
                max_restarts=1,
                window_seconds=86400,
                certify_steps=1000,
                generation=1,
                suspend=False,
            ),
            acks=acks,
            pods=pods,
            guard=guard,
            judged_step=judge.judged_step,
            green_step=judge.green_step,
            firing=judge.firing,
            claims=tuple(self._claim(one) for one in unknown),
            hold_on_nonfinite=True,
            final_check_over=True,
            withheld=judge.withheld,
            **self._measured(state, acks.diagnosed),
        )

    def _take(self, state: RunState) -> None:
        judge = self._judging
        if not state.attempts or not state.guards:
            return
        if judge.needs_loading(state):
            judge.begin(state, self._records(state))
        own = self.real.records(state.attempt)
        known = max(own, default=0) if self._stored(state) else OLD_ENOUGH
        judge.take(tuple(own[step] for step in sorted(own) if judge.judged_step < step <= known), state)

    def _stored(self, state: RunState) -> bool:
        """Steps are so short here that they overtake the store, and which checkpoints are there would be chance."""
        steps = {one.reference.step for one in state.checkpoints}
        return set(range(0, OLD_ENOUGH + 1, CHECKPOINT_EVERY)) <= steps

    def _records(self, state: RunState) -> tuple[MetricRecord, ...]:
        segments, first = self._judging.wanted(state)
        return tuple(
            record
            for segment in segments
            for step, record in sorted(self.real.records(segment.attempt).items())
            if max(first, segment.first) <= step <= (segment.last or step)
        )

    def _claim(self, reference: CheckpointReference) -> CheckpointClaim:
        body = self.real.objects(reference.key)[reference.key]
        assert sha256_hex(body) == reference.sha256
        attempt = decode_manifest(body).attempt
        return CheckpointClaim(reference=reference, attempt=attempt, usable=True, why="manifest and hash agree")

    def _measured(self, state: RunState, diagnosed: Ack | None) -> dict[str, Any]:
        """What the world measured, where that is what it was asked for."""
        if diagnosed is None or diagnosed.evidence is None or state.incident is None:
            return {}
        key = diagnosed.evidence.key
        if key not in self._evidence:
            self._evidence[key] = decode_probe(self.real.objects(key)[key])
        probe = self._evidence[key]
        if state.phase is RunPhase.DIAGNOSING and not suspect_trouble(probe, state.directive):
            return {"suspect": probe}
        restored = state.phase is RunPhase.DIAGNOSING_RESTORED
        return {"probe": probe} if restored and not probe_trouble(probe, state.incident, state.directive) else {}


@contextmanager
def remediated(real: Run, guard: AcceptedPolicy) -> Generator[TrainedRun]:
    """Let an operator look after the run until it is over or waits for a person."""
    with ExitStack() as stack:
        run = TrainedRun(real, guard, stack)
        operator = ScriptedOperator(run)

        def over() -> bool | None:
            run.acks = real.acks()
            operator.turn()
            return run.state.phase in {RunPhase.COMPLETED, RunPhase.NEEDS_HUMAN} or None

        until("the end of the run", over, seconds=240)
        assert not run.violations, run.violations
        restored = [
            directive_of((one.after or {})["directive"]) for one in run.announced if "directive" in (one.after or {})
        ]
        assert len({one.attempt for one in restored}) == run.state.attempt
        yield run


def tiny(redis_server: RedisServer, object_store: ObjectStoreServer, folder: Path) -> Run:
    return Run(redis_server, object_store, folder, object_store.new_bucket(), CONFIG, checkpoint_every=CHECKPOINT_EVERY)


def test_a_rate_that_is_too_high_breaks_every_naive_rollback_at_about_the_same_step_and_ends_with_a_human(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    real = tiny(redis_server, object_store, tmp_path)
    with remediated(real, policy()) as run:
        state, incident = run.state, run.state.incident
        assert state.phase is RunPhase.NEEDS_HUMAN
        assert incident is not None
        assert "plans in a row broke again at about step" in state.question, state.question
        latches = [(one.after or {})["latch"] for one in run.announced if one.action in {"IncidentOpened", "Relapsed"}]
        broke = [latch["first_bad_step"] for latch in latches]
        assert len(broke) == 4
        assert max(broke) - min(broke) <= NEARBY, broke
        targets = [plan.target.step for plan in incident.plans]
        assert targets == sorted(set(targets), reverse=True)
        assert Finding.BAD_BATCH not in {
            (one.after or {})["finding"] for one in run.announced if one.action == "Diagnosed"
        }


def test_the_policys_lower_rate_cures_the_same_run(
    redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    real = tiny(redis_server, object_store, tmp_path)
    with remediated(real, policy(learningRate={"scale": 0.1, "forSteps": 500})) as run:
        state = run.state
        assert state.phase is RunPhase.COMPLETED, state.question
        (incident,) = state.closed
        assert (incident.relapses, incident.outcome) == (0, "Recovered")
        assert real.records(state.attempt)[CONFIG["steps"]].scalars["loss"] < BROKEN
