"""A scripted run that is judged as a real one: metric records with losses, policy texts, and the operator's own Judge.

The losses are a pure function of the window: they move gently, damaged windows are far above, and mild ones so little
that only the rule's sigma says whether they are bad.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from played_trainer import Line, PlayedWorld, Scenario
from scripted_world import ScriptedRun
from trimtab_contract.directives import CheckpointReference, Diagnose
from trimtab_contract.evidence import ProbeEvidence
from trimtab_contract.metrics import MetricRecord
from trimtab_operator.guards import GuardView
from trimtab_operator.incidents import Latch, RemediationSettings
from trimtab_operator.judge import Judge, remediation_settings
from trimtab_operator.observation import Acks, Observation, Pods
from trimtab_operator.observer import probation_vitals
from trimtab_operator.run_state import RunState
from trimtab_policies.policy import AcceptedPolicy, parse_policy

_MOVES = (0.1, -0.1, 0.05, -0.05, 0.13, -0.13)
_DAMAGED = 3.2
MILD = 2.45
"""Above the control's mean by more than 4 of its standard deviations, and by less than 5."""


class JudgedRun(ScriptedRun):
    """Everything outside the operator, judged by a policy that the scenario is written into."""

    def __init__(self, scenario: Scenario, mild: frozenset[int] = frozenset(), slow_until: int = 0) -> None:
        super().__init__(scenario)
        self.metrics: dict[tuple[int, int], MetricRecord] = {}
        self.policy = policy_of(scenario)
        self._mild = mild
        self._slow_until = slow_until
        self._judge_of_records = Judge()
        self._judge_of_records.texts[self.policy.hash] = self.policy

    def published(self, attempt: int, step: int, line: Line) -> None:
        """The record with its losses."""
        super().published(attempt, step, line)
        loss = math.nan if line.nonfinite else self._loss(line.window, spoiled=line.bad)
        withheld = float(line.nonfinite)
        slow = attempt > 1 and step <= self._slow_until
        scalars = {"nonfinite": withheld, "skipped_update": withheld, "replica_mismatch": float(line.mismatch)}
        self.metrics[attempt, step] = MetricRecord(
            attempt=attempt,
            step=step,
            window=line.window,
            samples_seen=step * 16,
            tokens_seen=step * 2048,
            time=float(self.ticks),
            scalars={"loss": loss, "grad_norm": loss / 2, "tokens_per_second": 400.0 if slow else 1000.0, **scalars},
        )

    def measured(self, world: PlayedWorld, diagnose: Diagnose) -> None:
        """The held world measures with the losses of its records."""
        probe = self._probed(world.attempt, None, diagnose, spoiled=world.spoiled)
        self.suspects.setdefault((world.attempt, diagnose.windows), (self.ticks, probe))

    def observe(self, state: RunState, acks: Acks, pods: Pods) -> Observation:
        """What an operator sees, with all that follows from the records."""
        observation = super().observe(state, acks, pods)
        judge = self._judge_of_records
        guard = GuardView((self.policy,), "Enforce", (), ())
        return replace(
            observation,
            guard=guard.accepted(state.attempt, judge.judged_step + 1),
            green_step=judge.green_step,
            notes=judge.notes,
            probation=probation_vitals(state, judge, acks),
            withheld=judge.withheld,
        )

    def _judge(self, state: RunState) -> tuple[int, Latch | None]:
        judge = self._judge_of_records
        if not state.attempts or not state.guards:
            return 0, None
        if judge.needs_loading(state):
            segments, first = judge.wanted(state)
            places = [
                (segment.attempt, step)
                for segment in segments
                for step in range(max(segment.first, first), segment.last + 1 if segment.last is not None else 0)
            ]
            judge.begin(state, tuple(self.metrics[place] for place in places))
        fresh = [one for (attempt, _), one in self.metrics.items() if attempt == state.attempt]
        judge.take(tuple(one for one in fresh if one.step > judge.judged_step), state)
        return judge.judged_step, judge.firing

    def _settings(self) -> RemediationSettings:
        return remediation_settings(self.policy.spec.remediation)

    def _probe(self, state: RunState, acks: Acks) -> ProbeEvidence | None:
        probe, directive = super()._probe(state, acks), state.directive
        if probe is None or probe.state is None or directive is None or directive.diagnose is None:
            return None
        step, scenario = probe.state.step, self.scenario
        shows = scenario.latent is not None and self.saved[probe.state.key].spoiled and step >= scenario.latent[1]
        return self._probed(
            probe.attempt, probe.state, directive.diagnose, spoiled=shows or step in scenario.control_bad
        )

    def _probed(
        self, attempt: int, state: CheckpointReference | None, asked: Diagnose, *, spoiled: bool
    ) -> ProbeEvidence:
        """Forward-only losses; a window that was non-finite stays so, unless it was a glitch."""
        lasting = {
            line.window
            for place, line in self.records.items()
            if line.nonfinite and place not in self.scenario.glitches
        }

        def loss(window: int) -> float | None:
            return None if window in lasting else self._loss(window, spoiled=spoiled)

        first, last = asked.windows
        windows = tuple((window, loss(window)) for window in range(first, last + 1))
        control = tuple((window, loss(window)) for window in asked.control)
        return ProbeEvidence(attempt=attempt, state=state, windows=windows, control=control)

    def _loss(self, window: int, *, spoiled: bool = False) -> float:
        if spoiled or window in self.scenario.damaged:
            return _DAMAGED + _MOVES[window % 6]
        return MILD if window in self._mild else 2.0 + _MOVES[window % 6]


def policy_of(scenario: Scenario) -> AcceptedPolicy:
    """A guard with the scenario's action and remediation."""
    spec = parse_policy(policy_spec(scenario))
    return AcceptedPolicy.of(spec, kind="GuardPolicy", namespace="lab", name="guard", uid="policy-1", generation=1)


def policy_spec(scenario: Scenario) -> dict[str, Any]:
    """The text of that guard."""
    spike = {"baseline": {"statistic": "Mean", "records": 20, "minRecords": 10, "maxFreeze": 15}, "sigma": 4}
    approval: Mapping[str, Any] = (
        {"approval": "Required", "approvalDeadline": f"{scenario.approval}s"} if scenario.approval is not None else {}
    )
    return {
        "rules": [
            {"name": "loss-spike", "metric": "loss", "spike": spike, "forRecords": 3, "action": scenario.action},
            {"name": "loss-lone-spike", "metric": "loss", "spike": spike, "action": "Record"},
            {"name": "non-finite", "metric": "nonfinite", "range": {"max": 0}, "action": scenario.action},
            {"name": "replica-mismatch", "metric": "replica_mismatch", "range": {"max": 0}, "action": "Rollback"},
        ],
        "remediation": {
            "margin": scenario.margin,
            "skipBatches": {"before": scenario.before, "after": 2, "probe": 16},
            "probationSteps": scenario.probation,
            "escalate": {"marginFactor": scenario.margin_factor},
            **approval,
        },
    }
