"""A policy's text that the journal names and that is not in the audit bucket as it was: nothing is decided by it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from object_store_fixture import ObjectStoreServer
from operator_objects import guard_policy, training_job
from operator_ports import IDENTITY
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.keys import RunId, policy_text
from trimtab_operator.commands import Draft
from trimtab_operator.errors import JournalBroken
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.journal import RunJournal
from trimtab_operator.reconciler import Ports, RunReconciler
from trimtab_operator.run_state import AcceptedGuard, JournalAction
from trimtab_operator.supervisor import Supervisor

SPEC: Mapping[str, Any] = guard_policy("guards", "ours")["spec"]
NEWER: Mapping[str, Any] = {**SPEC, "clairvoyance": True}


def canonical(spec: Mapping[str, Any]) -> bytes:
    return json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()


async def judged_run(api: ControlPlane, ports: Ports, spec: Mapping[str, Any]) -> RunId:
    """A run whose journal names the policy that judges it."""
    (ours,) = ports.namespaces
    api.apply(training_job("demo", ours))
    run = RunId(ours, "demo", (await ports.cluster.training_job(ours, "demo"))["metadata"]["uid"])
    hashed = sha256_hex(canonical(spec))
    await ports.journal.put_object(policy_text(hashed), canonical(spec))
    policy = PolicyIdentity(
        kind="GuardPolicy", namespace=ours, name="guards", uid="u-2", generation=3, hash=hashed, mode="Enforce"
    )
    guard = AcceptedGuard(policies=(policy,), mode="Enforce", from_attempt=1, from_step=0)
    journal = RunJournal(ports.journal, run, IDENTITY)
    await journal.take_over(0)
    await journal.append(Draft(action=JournalAction.POLICY_ACCEPTED, id="policy", after={"guard": guard}))
    return run


def gone(client: Any, bucket: str, key: str) -> None:
    client.delete_object(Bucket=bucket, Key=key)


def kinder(client: Any, bucket: str, key: str) -> None:
    client.put_object(Bucket=bucket, Key=key, Body=canonical({**SPEC, "rules": []}))


def untouched(_client: Any, _bucket: str, _key: str) -> None:
    return


CASES: tuple[tuple[Mapping[str, Any], Callable[[Any, str, str], None], str], ...] = (
    (SPEC, gone, "is gone"),
    (SPEC, kinder, "has another hash"),
    (NEWER, untouched, "cannot be understood by this version of the operator (spec.clairvoyance: "),
)


@pytest.mark.parametrize(("spec", "tamper", "why"), CASES, ids=("gone", "altered", "newer"))
async def test_a_run_is_not_taken_by_another_text_than_the_one_it_was_judged_by(
    api: ControlPlane,
    ports: Ports,
    object_store: ObjectStoreServer,
    audit_bucket: str,
    spec: Mapping[str, Any],
    tamper: Callable[[Any, str, str], None],
    why: str,
) -> None:
    run = await judged_run(api, ports, spec)
    key = policy_text(sha256_hex(canonical(spec)))
    tamper(object_store.client(), audit_bucket, key)
    reconciler = RunReconciler(run, ports)
    for _ in range(3):
        with pytest.raises(JournalBroken) as caught:
            await reconciler.open()
    assert why in str(caught.value)
    assert f"policy guards, generation 3, by which the journal says that the run was judged, {why}" in str(caught.value)
    assert len(await ports.journal.read(run)) == 2, "what is tried again and again writes nothing"
    if tamper is untouched:
        return
    object_store.client().put_object(Bucket=audit_bucket, Key=key, Body=canonical(spec))
    await reconciler.open()
    assert len(await ports.journal.read(run)) == 3


async def test_a_deleted_run_gets_its_end_though_its_policies_text_is_gone(
    api: ControlPlane, ports: Ports, object_store: ObjectStoreServer, audit_bucket: str
) -> None:
    run = await judged_run(api, ports, SPEC)
    gone(object_store.client(), audit_bucket, policy_text(sha256_hex(canonical(SPEC))))
    api.kubectl("delete", "tj", "demo", f"-n={run.namespace}")
    await Supervisor(ports).end_orphans()
    last = await ports.journal.last(run)
    assert last is not None
    assert json.loads(last)["action"] == JournalAction.RUN_ENDED
