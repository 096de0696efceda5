"""The policies a job names, as they are in the cluster now: valid ones become texts that judge, others say why not."""

import json
from dataclasses import dataclass
from typing import Any

from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.keys import policy_text
from trimtab_policies.errors import InvalidPolicy
from trimtab_policies.policy import AcceptedPolicy, GuardPolicySpec, Mode, parse_policy
from trimtab_policies.rules import Action

from trimtab_operator.adapters.ports import Cluster, JournalStore, Kind
from trimtab_operator.errors import JournalBroken, NotFound
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.reasons import Reason
from trimtab_operator.resources import TrainingJobSpec
from trimtab_operator.run_state import AcceptedGuard, RunState
from trimtab_operator.satisfiability import unsatisfiable

_ACTING = frozenset({Action.PAUSE, Action.ROLLBACK, Action.STOP})


@dataclass(frozen=True, slots=True)
class GuardProblem:
    """Why a policy's newest text does not judge: a reason of `reasons` and the sentence that says what to do."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class GuardView:
    """What the job's `guard` means now.

    `blocking` are policies of which no text was ever in force: no world starts. `outdated` are policies whose last
    accepted text stays in force.
    """

    policies: tuple[AcceptedPolicy, ...]
    mode: str
    blocking: tuple[GuardProblem, ...]
    outdated: tuple[GuardProblem, ...]

    def accepted(self, attempt: int, step: int) -> AcceptedGuard:
        """The guard as the journal names it, judging from the given record on."""
        identities = tuple(
            PolicyIdentity(
                kind=one.kind,
                namespace=one.namespace or "",
                name=one.name,
                uid=one.uid,
                generation=one.generation,
                hash=one.hash,
                mode=one.mode.value,
            )
            for one in self.policies
        )
        return AcceptedGuard(policies=identities, mode=self.mode, from_attempt=max(attempt, 1), from_step=step)

    @property
    def holds_on_nonfinite(self) -> bool:
        """Whether an enforced rule on `nonfinite` acts: then a world holds by itself at a non-finite step."""
        return self.mode == Mode.ENFORCE.value and any(
            policy.mode is Mode.ENFORCE and rule.metric == "nonfinite" and rule.action in _ACTING
            for policy in self.policies
            for rule in policy.spec.rules
        )


async def read_guard(
    cluster: Cluster, namespace: str, spec: TrainingJobSpec, state: RunState, texts: dict[str, AcceptedPolicy]
) -> GuardView:
    """Read every policy the job names; an invalid or deleted one is replaced by its last accepted text."""
    policies: list[AcceptedPolicy] = []
    blocking: list[GuardProblem] = []
    outdated: list[GuardProblem] = []
    for reference in spec.guard.policies:
        kind = Kind(reference.kind)
        found = await _read(cluster, kind, namespace, reference.name, spec)
        if isinstance(found, AcceptedPolicy):
            policies.append(found)
            continue
        last = _last_accepted(state, kind, reference.name, texts)
        if last is None:
            blocking.append(found)
            continue
        policies.append(last)
        message = f"{found.message}; generation {last.generation} stays in force"
        outdated.append(GuardProblem(found.reason, message))
    return GuardView(tuple(policies), spec.guard.mode, tuple(blocking), tuple(outdated))


async def keep_texts(journal: JournalStore, guard: GuardView, texts: dict[str, AcceptedPolicy]) -> None:
    """Put every new text into the audit bucket, before a record names its hash."""
    for policy in guard.policies:
        if policy.hash not in texts:
            await journal.put_object(policy_text(policy.hash), _canonical(policy.spec))
            texts[policy.hash] = policy


async def load_texts(journal: JournalStore, state: RunState, texts: dict[str, AcceptedPolicy]) -> None:
    """Fetch every text the journal names, so that old records are judged by what was in force for them.

    Raises JournalBroken for one that is gone, is another one, or was written by a version that knows more.
    """
    for guard in state.guards:
        for identity in guard.policies:
            if identity.hash in texts:
                continue
            texts[identity.hash] = AcceptedPolicy.of(
                await _stored_text(journal, identity),
                kind=identity.kind,
                namespace=identity.namespace or None,
                name=identity.name,
                uid=identity.uid,
                generation=identity.generation,
            )


async def _stored_text(journal: JournalStore, identity: PolicyIdentity) -> GuardPolicySpec:
    key = policy_text(identity.hash)
    try:
        body = await journal.get_object(key)
        if sha256_hex(body) == identity.hash:
            return parse_policy(json.loads(body))
        why = "has another hash"
    except NotFound:
        why = "is gone"
    except ValueError as error:
        why = f"cannot be understood by this version of the operator ({error})"
    raise JournalBroken(
        f"the text of policy {identity.name}, generation {identity.generation}, by which the journal says that the run "
        f"was judged, {why}; nothing is done for this run until {key} in the audit bucket is as it was"
    )


async def _read(
    cluster: Cluster, kind: Kind, namespace: str, name: str, spec: TrainingJobSpec
) -> AcceptedPolicy | GuardProblem:
    """The policy as it is in the cluster, or why it cannot judge this job."""
    try:
        policy = _accept(kind, await cluster.guard_policy(kind, namespace, name))
    except NotFound:
        place = f" in namespace {namespace}" if kind is Kind.GUARD_POLICY else ""
        missing = f"spec.guard.policies: {kind} {name} does not exist{place}: create it, or correct the name"
        return GuardProblem(Reason.POLICY_MISSING, missing)
    except InvalidPolicy as error:
        return GuardProblem(Reason.POLICY_INVALID, f"{kind} {name}: {error}")
    unmet = unsatisfiable(policy.spec, spec.trainer.config)
    if unmet:
        return GuardProblem(Reason.POLICY_UNSATISFIABLE, f"{kind} {name}: {'; '.join(unmet)}")
    return policy


def _accept(kind: Kind, body: Any) -> AcceptedPolicy:
    metadata = body["metadata"]
    return AcceptedPolicy.of(
        parse_policy(body["spec"]),
        kind=kind.value,
        namespace=metadata.get("namespace"),
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
    )


def _canonical(spec: GuardPolicySpec) -> bytes:
    content = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _last_accepted(state: RunState, kind: Kind, name: str, texts: dict[str, AcceptedPolicy]) -> AcceptedPolicy | None:
    for guard in reversed(state.guards):
        for identity in guard.policies:
            if (identity.kind, identity.name) == (kind, name) and identity.hash in texts:
                return texts[identity.hash]
    return None
