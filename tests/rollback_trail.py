"""The journal of a run that was rolled back once, record by record, as the operator writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from trimtab_cli.trail import read_trail
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Action, CheckpointReference, Diagnose, Directive
from trimtab_contract.journal import (
    GENESIS,
    Actor,
    Evidence,
    JournalRecord,
    Phase,
    canonical_bytes,
    parse_record,
    record_hash,
)
from trimtab_contract.keys import RunId, audit_evidence, policy_text

Bodies = list[tuple[int, bytes]]

RUN = RunId("default", "demo", "u-1")
INCIDENT = "demo-a1-s321"
POLICY_TEXT = b'{"rules":[]}'
FROZEN = b'{"records":[]}'
DAMAGED = (320, 331)
STEPS = 600


@dataclass(frozen=True)
class TrailOptions:
    """What a test may choose: the run, and the manifests of steps 0, 300 and 320 as (key, bytes)."""

    run: RunId = RUN
    manifests: tuple[tuple[str, bytes], ...] = tuple(
        (f"{step}/manifest.json", str(step).encode()) for step in (0, 300, 320)
    )


class TrailWriter:
    """Appends records to a chain."""

    def __init__(self, epoch: int = 1) -> None:
        self.bodies: Bodies = []
        self.epoch = epoch
        self._head = GENESIS

    def add(self, action: str, **fields: Any) -> JournalRecord:
        """One record; `id` is made up unless given."""
        seq = len(self.bodies) + 1
        record = JournalRecord(
            seq=seq,
            prev=self._head,
            id=fields.pop("id", f"{action}/{seq}"),
            time=f"2026-01-01T00:{seq // 60:02d}:{seq % 60:02d}.000000+00:00",
            actor=Actor(service_account="trimtab", pod="operator-1", pod_uid="p-1", image="op:1", epoch=self.epoch),
            action=action,
            **fields,
        )
        body = canonical_bytes(record)
        self.bodies.append((seq, body))
        self._head = record_hash(body)
        return record

    def effect(self, action: str, outcome: str, **fields: Any) -> None:
        """An intent and its result."""
        intent = self.add(action, phase=Phase.INTENT, **fields)
        self.add(action, phase=Phase.RESULT, id=intent.id, incident=intent.incident, outcome=outcome)

    @property
    def seq(self) -> int:
        """The next record's number."""
        return len(self.bodies) + 1


def latch() -> dict[str, Any]:
    """The rule that fired on windows 320 to 322."""
    return {
        "policy": policy_identity(),
        "rule": "loss-spike",
        "metric": "loss",
        "action": "Rollback",
        "observed": 8.1,
        "threshold": 2.25,
        "sigma": 4.0,
        "control_limit": 2.25,
        "message": "loss 8.1 is above 2.25 for 3 records",
        "attempt": 1,
        "first_bad_step": 321,
        "fired_step": 323,
        "flagged": [320, 322],
        "remediation": {
            "margin": 20,
            "before": 1,
            "after": 2,
            "probe": 64,
            "probation_steps": 60,
            "margin_factor": 2.0,
        },
        "rule_text": {},
    }


def policy_identity() -> dict[str, Any]:
    return {
        "kind": "GuardPolicy",
        "namespace": "default",
        "name": "guards",
        "uid": "u-2",
        "generation": 3,
        "hash": sha256_hex(POLICY_TEXT),
    }


def rollback_trail(options: TrailOptions | None = None) -> Bodies:
    """Takeover to Completed: steps 1 to 323, back to step 300, windows 319 to 333 skipped, steps 301 to 600."""
    options = options or TrailOptions()
    trail = _begun()
    references = {
        step: CheckpointReference(key=key, sha256=sha256_hex(body), step=step)
        for step, (key, body) in zip((0, 300, 320), options.manifests, strict=True)
    }
    candidates = [
        {"step": 320, "attempt": 1, "state": "Quarantined", "chosen": False, "why": "newer than step 301"},
        {"step": 300, "attempt": 1, "state": "Committed", "chosen": True, "why": "the newest one old enough"},
        {"step": 0, "attempt": 1, "state": "Committed", "chosen": False, "why": "an older one than the chosen"},
    ]
    for reference in references.values():
        _checkpoint(trail, "Committed", reference, "manifest hash agrees")
    trail.add(
        "IncidentOpened",
        incident=INCIDENT,
        reason={"rule": "loss-spike", "message": "loss 8.1 is above 2.25 for 3 records"},
        after={"latch": latch(), "phase": "Holding"},
    )
    hold = _directive(trail, Action.HOLD, incident=INCIDENT)
    trail.effect("Directive", "directive written", incident=INCIDENT, after={"directive": hold})
    frozen = Evidence(key=audit_evidence(options.run, sha256_hex(FROZEN)), sha256=sha256_hex(FROZEN))
    held = {"step": 323, "lost": False, "replicas_agree": True, "phase": "Diagnosing"}
    trail.add("Held", incident=INCIDENT, evidence=(frozen,), after=held)
    _checkpoint(trail, "Quarantined", references[320], "newer than the first bad step", incident=INCIDENT)
    finding = {"finding": "Undecided", "why": "replicas agree; nothing proves a transient fault", "phase": "Selecting"}
    trail.add("Diagnosed", incident=INCIDENT, after=finding)
    trail.add(
        "TargetSelected",
        incident=INCIDENT,
        reason={"message": "step 300: the newest trustworthy one at or before step 301", "candidates": candidates},
        after={"plan": {"number": 1, "target": references[300]}, "counted": True, "phase": "Restoring"},
    )
    restore: dict[str, Any] = {"attempt": 2, "restore": references[300], "incident": INCIDENT}
    measure = _directive(trail, Action.HOLD, diagnose=Diagnose(windows=(320, 386), control=(318, 319)), **restore)
    trail.effect("Directive", "directive written", incident=INCIDENT, after={"directive": measure})
    restored = {"attempt": 2, "checkpoint": references[300], "phase": "DiagnosingRestored"}
    trail.add("Restored", incident=INCIDENT, reason={"message": "probe losses agree"}, after=restored)
    trail.add(
        "ExtentFound",
        incident=INCIDENT,
        reason={"message": "12 of 67 windows measured above 2.25"},
        after={"skip": {"first": 319, "last": 333, "bad": 12}},
    )
    resume = _directive(trail, Action.RUN, skip=((319, 333),), **restore)
    trail.effect("Directive", "directive written", incident=INCIDENT, after={"directive": resume, "phase": "Probation"})
    trail.add(
        "IncidentClosed",
        incident=INCIDENT,
        outcome="Recovered",
        reason={"message": "all rules green up to step 383"},
        after={"phase": "Watching"},
    )
    finish = _directive(trail, Action.FINISH, skip=((319, 333),), **restore)
    trail.effect(
        "Completed",
        "directive written",
        reason={"message": "all 600 steps are trained and judged"},
        after={"directive": finish, "phase": "Completed"},
    )
    return trail.bodies


def running_trail(references: Sequence[CheckpointReference]) -> TrailWriter:
    """Takeover to a world that trains in its first attempt, with these checkpoints committed and verified."""
    trail = _begun()
    for reference in references:
        _checkpoint(trail, "Committed", reference, "manifest hash agrees")
        _checkpoint(trail, "Verified", reference, "read back whole")
    return trail


def _begun() -> TrailWriter:
    """Takeover to a world that trains."""
    trail = TrailWriter()
    trail.add("Takeover", after={"epoch": 1})
    guard = {"policies": [policy_identity()], "mode": "Enforce", "from_attempt": 1, "from_step": 0}
    trail.add("PolicyAccepted", after={"guard": guard})
    run = _directive(trail, Action.RUN)
    trail.effect("StartWorld", "Job demo-1 created", after={"directive": run, "generation": 1})
    trail.add("WorldRunning", after={"world": 1, "phase": "Watching"})
    return trail


def _directive(trail: TrailWriter, action: Action, **fields: Any) -> Directive:
    return Directive(epoch=1, seq=trail.seq, world=1, action=action, **{"attempt": 1, **fields})


def _checkpoint(
    trail: TrailWriter, action: str, reference: CheckpointReference, why: str, incident: str | None = None
) -> None:
    evidence = (Evidence(key=reference.key, sha256=reference.sha256, store="checkpoint"),)
    after = {"checkpoint": reference, "attempt": 1, "why": why}
    trail.add(action, incident=incident, after=after, evidence=evidence if action == "Committed" else ())


def rewritten(bodies: Sequence[tuple[int, bytes]], seq: int, **changes: Any) -> Bodies:
    """The same chain with one record changed and every later one chained anew: a forger with all the time there is."""
    forged: Bodies = []
    head = GENESIS
    for number, stored in bodies:
        record = msgspec.json.decode(stored, type=JournalRecord)
        fields = {"prev": head, **(changes if number == seq else {})}
        body = canonical_bytes(msgspec.structs.replace(record, **fields))
        forged.append((number, body))
        head = record_hash(body)
    return forged


def going(bodies: Bodies, step: int, *, gone: bool = False) -> Bodies:
    """The trail with the intent to delete the checkpoint of a step behind it, and with the result if it is gone."""
    (key,) = [one.reference for one in read_trail(bodies).state.checkpoints if one.reference.step == step]
    last = parse_record(bodies[-1][1])
    record = JournalRecord(
        seq=last.seq + 1,
        prev=record_hash(bodies[-1][1]),
        id=f"checkpoint/{key.key}/Deleting",
        time=last.time,
        actor=last.actor,
        action="Deleting",
        phase=Phase.INTENT,
        after={"checkpoint": msgspec.to_builtins(key), "attempt": 1, "why": "nothing keeps it"},
    )
    announced = [*bodies, (record.seq, canonical_bytes(record))]
    if not gone:
        return announced
    head = record_hash(announced[-1][1])
    said: dict[str, Any] = {"phase": Phase.RESULT, "after": {"key": key.key}, "outcome": "Deleted"}
    result = msgspec.structs.replace(record, seq=record.seq + 1, prev=head, **said)
    return [*announced, (result.seq, canonical_bytes(result))]


def audit_objects(run: RunId) -> dict[str, bytes]:
    """What the audit bucket holds beside the journal."""
    return {policy_text(sha256_hex(POLICY_TEXT)): POLICY_TEXT, audit_evidence(run, sha256_hex(FROZEN)): FROZEN}
