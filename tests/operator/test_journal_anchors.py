"""JournalAnchors on a real API server: what the audit bucket's owner cannot rewrite, and what waits for it."""

import uuid
from dataclasses import replace
from typing import Any

import pytest
from control_plane_fixture import ControlPlane
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from operator_objects import training_job
from operator_ports import IDENTITY
from trimtab_contract.anchors import Anchor, anchor_name
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator.adapters.ports import Kind
from trimtab_operator.anchors import ANCHOR_SECONDS, AnchorKeeper
from trimtab_operator.commands import Append, Draft
from trimtab_operator.errors import InvalidResource, JournalBroken
from trimtab_operator.journal import RunJournal
from trimtab_operator.reconciler import Ports, RunReconciler
from trimtab_operator.resources import API_VERSION, anchor_spec, parse_journal_anchor
from trimtab_operator.run_state import JournalAction, RunPhase, RunState
from trimtab_operator.signatures import AnchorSigner
from trimtab_operator.supervisor import Supervisor

FIRST = RunState(seq=3, head="a" * 64)


def new_run(ports: Ports) -> RunId:
    return RunId(ports.namespaces[0], "job", str(uuid.uuid4()))


def signer() -> AnchorSigner:
    return AnchorSigner(Ed25519PrivateKey.generate())


async def stored(ports: Ports, run: RunId) -> Anchor:
    body = await ports.cluster.journal_anchor(run.namespace, anchor_name(run))
    assert body is not None
    found, anchor = parse_journal_anchor(body)
    assert found == run
    return anchor


def anchor_object(run: RunId, **spec: Any) -> dict[str, Any]:
    given = {**anchor_spec(Anchor(run=str(run), seq=3, hash="a" * 64), run), **spec}
    metadata = {"name": anchor_name(run), "namespace": run.namespace}
    return {"apiVersion": API_VERSION, "kind": "JournalAnchor", "metadata": metadata, "spec": given}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seq": 2}, "never falls"),
        ({"hash": "b" * 64}, "is that of record seq, which does not change"),
        ({"job": {"name": "other", "uid": "u"}}, "is immutable"),
        ({"seq": 0}, "greater than or equal to 1"),
    ],
)
async def test_the_api_server_lets_no_anchor_go_back_or_change_its_mind(
    api: ControlPlane, ports: Ports, change: dict[str, Any], says: str
) -> None:
    run = new_run(ports)
    first = anchor_object(run)
    first["spec"].pop("signature")
    api.apply(first)
    changed = {**first, "spec": {**first["spec"], **change}}
    assert says in api.refusal(changed)
    api.apply({**first, "spec": {**first["spec"], "seq": 4, "hash": "b" * 64}})


async def test_the_head_is_anchored_within_a_minute_and_at_once_when_the_run_is_over(ports: Ports) -> None:
    run = new_run(ports)
    keeper = AnchorKeeper(ports.cluster, run, None)
    await keeper.keep(0.0, FIRST)
    assert await keeper.voucher() is None
    await keeper.keep(ANCHOR_SECONDS, FIRST)
    assert (await stored(ports, run)).seq == 3
    await keeper.keep(ANCHOR_SECONDS + 10, replace(FIRST, seq=4, head="b" * 64, phase=RunPhase.COMPLETED))
    anchor = await stored(ports, run)
    assert (anchor.seq, anchor.hash, anchor.ended) == (4, "b" * 64, False)
    body = await ports.cluster.journal_anchor(run.namespace, anchor_name(run))
    assert body is not None
    assert "ownerReferences" not in body["metadata"], "it would be collected with its job"


async def test_a_new_key_signs_the_next_anchor_and_a_signature_that_the_named_key_did_not_make_stops_the_run(
    ports: Ports,
) -> None:
    run, old, new = new_run(ports), signer(), signer()
    assert await AnchorKeeper(ports.cluster, run, old).write(FIRST)
    first = await stored(ports, run)
    assert old.signed(first)
    assert not new.signed(first)
    keeper = AnchorKeeper(ports.cluster, run, new)
    voucher = await keeper.voucher()
    assert voucher is not None, "an anchor of the key before this one is believed"
    assert await keeper.write(replace(FIRST, seq=4, head="b" * 64))
    second = await stored(ports, run)
    assert new.signed(second)
    assert second.signature
    assert second.signature.key_id == new.key_id
    body = await ports.cluster.journal_anchor(run.namespace, anchor_name(run))
    assert body is not None
    forged = anchor_spec(replace_signed(second, seq=5), run)
    version = body["metadata"]["resourceVersion"]
    await ports.cluster.patch_spec(Kind.JOURNAL_ANCHOR, run.namespace, anchor_name(run), forged, version)
    with pytest.raises(JournalBroken, match="disagree at record 5: its signature is not by the key that it names"):
        await AnchorKeeper(ports.cluster, run, new).voucher()


def replace_signed(anchor: Anchor, *, seq: int) -> Anchor:
    return Anchor(run=anchor.run, seq=seq, hash=anchor.hash, signature=anchor.signature)


async def open_run(ports: Ports) -> tuple[RunReconciler, RunId]:
    run = new_run(ports)
    reconciler = RunReconciler(run, ports)
    await reconciler.open()
    return reconciler, run


async def test_what_is_over_waits_for_its_anchor_with_a_visible_reason_and_a_hold_does_not(
    api: ControlPlane, ports: Ports
) -> None:
    reconciler, run = await open_run(ports)
    api.apply(anchor_object_without_signature(run, seq=1000))
    close = Append(Draft(action=JournalAction.INCIDENT_CLOSED, outcome="Recovered"))
    complete = Append(Draft(action=JournalAction.COMPLETED))
    assert not await reconciler._anchored_for(close)
    assert "record 1 of the journal is not anchored outside its bucket" in reconciler._anchors.problem
    assert not await reconciler._anchored_for(complete)
    for action in (JournalAction.INCIDENT_OPENED, JournalAction.DIRECTIVE, JournalAction.TARGET_SELECTED):
        assert await reconciler._anchored_for(Append(Draft(action=action)))
    api.kubectl("delete", "ja", anchor_name(run), f"-n={run.namespace}")
    assert await reconciler._anchored_for(close)
    assert reconciler._anchors.problem == ""
    assert (await stored(ports, run)).seq == 1


def anchor_object_without_signature(run: RunId, **spec: Any) -> dict[str, Any]:
    made = anchor_object(run, **spec)
    made["spec"].pop("signature")
    return made


@pytest.mark.parametrize("tampered", ["cut", "written anew", "anchor by hand"])
async def test_nobody_takes_a_run_over_whose_journal_and_anchor_disagree(
    api: ControlPlane, ports: Ports, tampered: str
) -> None:
    run = new_run(ports)
    written = RunJournal(ports.journal, run, IDENTITY)
    await written.take_over(0)
    state = written.state
    if tampered == "cut":
        state = replace(state, seq=2, head="c" * 64)
    elif tampered == "written anew":
        state = replace(state, head="c" * 64)
    await AnchorKeeper(ports.cluster, run, None).write(state)
    if tampered == "anchor by hand":
        api.kubectl("delete", "ja", anchor_name(run), f"-n={run.namespace}")
        api.apply(anchor_object_without_signature(run, job={"name": "other", "uid": run.uid}))
    says = {
        "cut": r"broken at record 2: it is missing, and the JournalAnchor .* knows record 2",
        "written anew": r"broken at record 1: it is not the one whose hash the JournalAnchor",
        "anchor by hand": r"says that it is that of run",
    }[tampered]
    with pytest.raises(JournalBroken, match=says):
        await RunReconciler(run, ports).open()
    assert len(await ports.journal.read(run)) == 1


async def test_the_anchor_of_a_deleted_job_says_that_its_journal_has_ended_and_spares_the_next_operator_reading_it(
    api: ControlPlane, ports: Ports, object_store: Any, audit_bucket: str
) -> None:
    (ours,) = ports.namespaces
    api.apply(training_job("living", ours))
    uid = (await ports.cluster.training_job(ours, "living"))["metadata"]["uid"]
    run = RunId(ours, "living", uid)
    await RunReconciler(run, ports).open()
    api.kubectl("delete", "tj", "living", f"-n={ours}")
    await Supervisor(ports).end_orphans()
    anchor = await stored(ports, run)
    bodies = await ports.journal.read(run)
    assert (anchor.seq, anchor.ended) == (len(bodies), True)
    for seq, _ in bodies:
        object_store.client().delete_object(Bucket=audit_bucket, Key=journal_record(run, seq))
    await Supervisor(ports).end_orphans()
    assert await ports.journal.read(run) == ()


async def test_an_end_that_was_written_and_not_anchored_is_anchored_by_the_next_operator(
    api: ControlPlane, ports: Ports
) -> None:
    reconciler, run = await open_run(ports)
    await reconciler._anchors.write(reconciler.state)
    await reconciler._journal.append(Draft(action=JournalAction.RUN_ENDED, id="run/RunEnded", outcome="Deleted"))
    await Supervisor(ports).end_orphans()
    anchor = await stored(ports, run)
    assert (anchor.seq, anchor.ended) == (2, True)
    assert len(await ports.journal.read(run)) == 2, "an ended journal got another record"


async def test_an_end_before_the_first_anchor_is_anchored_by_the_next_operator_unless_it_is_long_ago(
    api: ControlPlane, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciler, run = await open_run(ports)
    await reconciler._journal.append(Draft(action=JournalAction.RUN_ENDED, id="run/RunEnded", outcome="Deleted"))
    with monkeypatch.context() as patch:
        patch.setattr("trimtab_operator.supervisor.UNANCHORED_END_SECONDS", -3600.0)
        await Supervisor(ports).end_orphans()
    assert run not in {parse_journal_anchor(body)[0] for body in await ports.cluster.journal_anchors()}
    await Supervisor(ports).end_orphans()
    anchor = await stored(ports, run)
    assert (anchor.seq, anchor.ended) == (2, True)
    assert len(await ports.journal.read(run)) == 2, "an ended journal got another record"


async def test_the_end_of_a_run_whose_namespace_is_gone_waits_for_no_anchor(ports: Ports) -> None:
    run = RunId("nowhere", "job", str(uuid.uuid4()))
    reconciler = RunReconciler(run, ports)
    await reconciler.open()
    await reconciler.end("Deleted")
    assert reconciler.gone


def test_an_anchor_written_by_hand_is_not_read() -> None:
    body = anchor_object(RunId("lab", "job", "u"), seq="many")
    with pytest.raises(InvalidResource, match="was written by hand or by a newer version"):
        parse_journal_anchor(body)
