"""When the records around a firing go into the audit bucket: with a real one, and the real judgement."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from judged_runs import record
from object_store_fixture import ADMIN, ObjectStoreServer
from run_states import incident, latch, run_state
from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Action, Directive
from trimtab_contract.keys import RunId
from trimtab_operator.adapters.s3 import S3CheckpointStores, S3Credentials, S3JournalStore, S3Location
from trimtab_operator.guards import GuardView
from trimtab_operator.judge import Judge
from trimtab_operator.observation import Acks, Limits, Observation, Pods
from trimtab_operator.observer import Observer, Surveyed
from trimtab_operator.run_state import JournalAction, PendingEffect, RunPhase, RunState, World

RUN = RunId("lab", "demo", "uid")
INCIDENT = incident()
HOLD = Directive(epoch=1, seq=31, world=1, attempt=1, action=Action.HOLD, incident=INCIDENT.name)
PENDING = PendingEffect(id="hold", action=JournalAction.DIRECTIVE, incident=INCIDENT.name, after={})


@pytest.fixture
async def journal(object_store: ObjectStoreServer) -> AsyncIterator[S3JournalStore]:
    location = S3Location(object_store.new_bucket("audit"), object_store.endpoint)
    store = S3JournalStore(location, S3Credentials(ADMIN.access_key, ADMIN.secret_key))
    yield store
    await store.close()


def fired() -> Judge:
    """A judge with records whose rule has fired."""
    judge = Judge()
    judge.begin(run_state(), tuple(record(step, loss=2.0) for step in range(1, 5)))
    judge.firing = latch(first_bad_step=3)
    return judge


async def observed(journal: S3JournalStore, state: RunState) -> Observation:
    nobody = cast("Any", None)
    observer = Observer(RUN, nobody, journal, S3CheckpointStores())
    limits = Limits(max_rollbacks=3, max_restarts=3, window_seconds=60, certify_steps=10, generation=1, suspend=False)
    surveyed = Surveyed(limits, (), GuardView((), "Enforce", (), ()), Pods())
    judge = fired()
    return await observer.observe(
        surveyed,
        job="demo",
        now="now",
        acks=Acks(),
        judge=judge,
        state=state,
        hung="",
        missing_metrics=(),
        final_check_over=False,
    )


def holding(**changes: Any) -> RunState:
    return run_state(phase=RunPhase.HOLDING, incident=INCIDENT, **changes)


async def test_no_evidence_is_written_while_the_hold_waits_to_be_sent(journal: S3JournalStore) -> None:
    assert (await observed(journal, holding())).frozen_evidence == ()
    assert (await observed(journal, holding(directive=HOLD, pending=PENDING))).frozen_evidence == ()


@pytest.mark.parametrize("state", [holding(directive=HOLD), holding(world=World(number=1, live=False))])
async def test_evidence_is_there_before_the_run_is_said_to_be_held(journal: S3JournalStore, state: RunState) -> None:
    evidence = (await observed(journal, state)).frozen_evidence[0]
    body = await journal.get_object(evidence.key)
    assert sha256_hex(body) == evidence.sha256
    assert body == fired().evidence()


async def test_what_was_frozen_for_a_paused_run_stays_while_it_waits_for_an_answer(journal: S3JournalStore) -> None:
    pause = msgspec.structs.replace(INCIDENT, latch=latch(first_bad_step=3, action="Pause"))
    paused = replace(holding(directive=HOLD), incident=pause)
    assert (await observed(journal, paused)).frozen_evidence
    held = replace(paused, incident=msgspec.structs.replace(pause, held_step=4))
    assert (await observed(journal, held)).frozen_evidence == ()
