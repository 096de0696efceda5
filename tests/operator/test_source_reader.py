"""What a new run is to continue, read from a real S3 server: another run's journal and its checkpoints."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from object_store_fixture import ADMIN, STRANGER, Credentials, ObjectStoreServer
from saving_trainer import Trainer
from trimtab_contract.anchors import Anchor, anchor_name
from trimtab_contract.config_record import ConfigRecord
from trimtab_contract.directives import Action, CheckpointReference, Directive, LearningRateOverride
from trimtab_contract.journal import Evidence
from trimtab_contract.keys import journal_record
from trimtab_operator.adapters.ports import Cluster
from trimtab_operator.adapters.s3 import (
    S3CheckpointStore,
    S3CheckpointStores,
    S3Credentials,
    S3JournalStore,
    S3Location,
)
from trimtab_operator.commands import Draft
from trimtab_operator.errors import NotFound, SourceRefused
from trimtab_operator.journal import Identity, RunJournal
from trimtab_operator.resources import anchor_spec
from trimtab_operator.run_state import CheckpointState, JournalAction
from trimtab_operator.source_reader import FoundSource, SourceReader
from trimtab_operator.sources import Wanted

STEP = 10
IDENTITY = Identity(service_account="operator", pod="p", pod_uid="u", image="i")
HALVED = LearningRateOverride(scale=0.5, until_step=20)


class Anchors:
    """The API server, as far as it is asked: the anchor of the other run, whose TrainingJob is gone."""

    def __init__(self) -> None:
        self.anchor: dict[str, Any] | None = None

    async def journal_anchor(self, _namespace: str, _name: str) -> dict[str, Any] | None:
        return self.anchor

    async def training_job(self, _namespace: str, name: str) -> dict[str, Any]:
        message = f"TrainingJob {name} does not exist"
        raise NotFound(message)


@dataclass
class Older:
    """A run that others may continue: what it saved, and its journal, if it is in the audit bucket."""

    server: ObjectStoreServer
    bucket: str
    audit: str
    trainer: Trainer
    journal: S3JournalStore
    stores: S3CheckpointStores
    anchors: Anchors

    def store(self, who: Credentials = ADMIN) -> S3CheckpointStore:
        secret = {"AWS_ACCESS_KEY_ID": who.access_key, "AWS_SECRET_ACCESS_KEY": who.secret_key}
        return self.stores.open(f"s3://{self.bucket}/team", self.server.endpoint, secret)

    async def find(
        self,
        sha256: str | None = None,
        *,
        step: int = STEP,
        who: Credentials = ADMIN,
        config: dict[str, Any] | None = None,
    ) -> FoundSource:
        reader = SourceReader(cast("Cluster", self.anchors), self.journal)
        return await reader.find(Wanted(self.trainer.run, step, sha256, config), self.store(who))

    async def wrote(self, *drafts: Draft) -> RunJournal:
        """The run's journal in the audit bucket: taken over, started, and what follows."""
        journal = RunJournal(self.journal, self.trainer.run, IDENTITY)
        await journal.take_over(0)
        directive = Directive(epoch=1, seq=2, world=1, attempt=1, action=Action.RUN, skip=((30, 31),))
        for draft in (Draft(action=JournalAction.START_WORLD, id="run#1", after={"directive": directive}), *drafts):
            await journal.append(draft)
        return journal


def said(state: CheckpointState, reference: CheckpointReference, why: str) -> Draft:
    after = {"checkpoint": reference, "attempt": 1, "why": why}
    return Draft(action=JournalAction(state.value), id=f"checkpoint/{state}", after=after)


@pytest.fixture(scope="module")
def buckets(object_store: ObjectStoreServer) -> tuple[str, str]:
    return object_store.new_bucket("older"), object_store.new_bucket("audit")


@pytest.fixture
async def older(object_store: ObjectStoreServer, buckets: tuple[str, str]) -> AsyncIterator[Older]:
    bucket, audit = buckets
    location = S3Location(audit, object_store.endpoint)
    journal = S3JournalStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    stores = S3CheckpointStores()
    yield Older(object_store, bucket, audit, Trainer(object_store, bucket), journal, stores, Anchors())
    await journal.close()
    await stores.close()


async def test_without_that_runs_journal_the_hash_that_a_person_names_decides(older: Older) -> None:
    older.trainer.save(STEP)
    reference = older.trainer.save(STEP, skip=((3, 4),), lr=HALVED)
    found = await older.find(reference.sha256)
    source = found.source
    assert (source.run, source.checkpoint) == (str(older.trainer.run), reference)
    assert (source.state, source.why) == (CheckpointState.COMMITTED, "spec.resumeFrom names its hash")
    assert (source.skip, source.lr) == (((3, 4),), HALVED)
    assert found.evidence == ()


async def test_without_its_journal_and_without_a_hash_nothing_is_continued(older: Older) -> None:
    older.trainer.save(STEP)
    with pytest.raises(SourceRefused, match=r"spec\.resumeFrom\.manifestSHA256: required, .* has no journal of run"):
        await older.find()


async def test_with_its_journal_the_hash_comes_from_there_and_so_does_what_was_found_bad_since(older: Older) -> None:
    reference = older.trainer.save(STEP, skip=((3, 4),))
    journal = await older.wrote(
        said(CheckpointState.COMMITTED, reference, "sizes agree"),
        said(CheckpointState.CERTIFIED, reference, "all green"),
    )
    found = await older.find()
    assert (found.source.checkpoint, found.source.state) == (reference, CheckpointState.CERTIFIED)
    assert found.source.why == "all green"
    assert found.source.skip == ((3, 4), (30, 31))
    head = Evidence(key=journal_record(older.trainer.run, journal.state.seq), sha256=journal.state.head)
    assert found.evidence == (head,)


async def test_what_its_journal_has_quarantined_is_not_continued_whatever_hash_is_named(older: Older) -> None:
    reference = older.trainer.save(STEP)
    await older.wrote(
        said(CheckpointState.COMMITTED, reference, "sizes agree"),
        said(CheckpointState.QUARANTINED, reference, "object rank-0 has another SHA-256"),
    )
    with pytest.raises(SourceRefused, match="quarantined: object rank-0 has another SHA-256"):
        await older.find(reference.sha256)


async def test_a_checkpoint_that_is_not_whole_is_not_continued(older: Older) -> None:
    reference = older.trainer.save(STEP, leave_out="rank-000001.bin")
    with pytest.raises(SourceRefused, match=r"step 10 .* cannot be continued: object rank-000001.bin has no bytes"):
        await older.find(reference.sha256)


async def test_a_checkpoint_of_another_model_is_refused_before_anything_is_started(older: Older) -> None:
    recorded = ConfigRecord(fields={"model.width": 64}, chosen=("model.width",))
    reference = older.trainer.save(STEP, config=recorded)
    with pytest.raises(SourceRefused, match=r"^spec\.trainer\.config: .* model\.width: was 64, is 32; set these"):
        await older.find(reference.sha256, config={"model": {"width": 32}})
    assert (await older.find(reference.sha256, config={"model": {"width": 64}})).source.checkpoint == reference


async def test_a_manifest_that_was_replaced_is_not_the_one_that_its_journal_vouches_for(older: Older) -> None:
    reference = older.trainer.save(STEP)
    await older.wrote(said(CheckpointState.COMMITTED, reference, "sizes agree"))
    older.trainer.put(reference.key, b"{}")
    with pytest.raises(SourceRefused, match=r"cannot be continued: its manifest's SHA-256 is not the one"):
        await older.find()


async def test_a_broken_journal_vouches_for_nothing_and_a_named_hash_does(older: Older) -> None:
    reference = older.trainer.save(STEP)
    await older.wrote(said(CheckpointState.COMMITTED, reference, "sizes agree"))
    older.server.client().delete_object(Bucket=older.audit, Key=journal_record(older.trainer.run, 2))
    with pytest.raises(SourceRefused, match=r"manifestSHA256: required, .* the journal is broken at record 2"):
        await older.find()
    assert (await older.find(reference.sha256)).source.checkpoint == reference


async def test_a_journal_cut_short_is_known_by_its_anchor(older: Older) -> None:
    reference = older.trainer.save(STEP)
    journal = await older.wrote(
        said(CheckpointState.COMMITTED, reference, "sizes agree"),
        said(CheckpointState.QUARANTINED, reference, "damaged"),
    )
    run, seq = older.trainer.run, journal.state.seq
    spec = anchor_spec(Anchor(run=str(run), seq=seq, hash=journal.state.head), run)
    older.anchors.anchor = {"metadata": {"name": anchor_name(run), "namespace": run.namespace}, "spec": spec}
    older.server.client().delete_object(Bucket=older.audit, Key=journal_record(run, seq))
    with pytest.raises(SourceRefused, match=rf"manifestSHA256: required, .* the JournalAnchor .* knows record {seq}"):
        await older.find()


async def test_credentials_that_may_not_read_it_are_named_with_the_rights_they_lack(older: Older) -> None:
    reference = older.trainer.save(STEP)
    await older.wrote(said(CheckpointState.QUARANTINED, reference, "a secret of that run"))
    with pytest.raises(SourceRefused) as refused:
        await older.find(who=STRANGER)
    told = str(refused.value)
    assert f"may not read what lies under team/{older.trainer.run}/checkpoints/ in the bucket of checkpoint.uri" in told
    assert "spec.resumeFrom.run" in told
    assert "a secret of that run" not in told


async def test_a_suspect_state_is_evidence_and_never_continued(older: Older) -> None:
    reference = older.trainer.save(STEP, trigger="Suspect")
    with pytest.raises(SourceRefused, match="cannot be continued: the state at which the run was held"):
        await older.find(reference.sha256)
