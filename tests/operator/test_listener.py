"""What is heard of a run whose Redis has forgotten it: the archive is read as far as there must be records."""

import uuid
from collections.abc import AsyncIterator

import pytest
from judged_runs import accepted, record
from object_store_fixture import ADMIN, ObjectStoreServer
from redis_fixture import RedisServer
from run_states import attempts, checkpoint, run_state
from trimtab_contract.keys import RunId, records_segment
from trimtab_contract.metrics import encode_archive
from trimtab_operator.adapters.redis import RedisBus
from trimtab_operator.adapters.s3 import S3CheckpointStore, S3CheckpointStores
from trimtab_operator.incidents import PolicyIdentity
from trimtab_operator.judge import Judge
from trimtab_operator.listener import RunListener
from trimtab_operator.run_state import AcceptedGuard, RunPhase, RunState

RUN = RunId("lab", "demo", str(uuid.uuid4()))
POLICY = accepted({"range": {"max": 100}})
GUARD = AcceptedGuard(
    policies=(
        PolicyIdentity(
            kind=POLICY.kind, namespace="lab", name=POLICY.name, uid=POLICY.uid, generation=1, hash=POLICY.hash
        ),
    ),
    mode="Enforce",
    from_attempt=1,
    from_step=1,
)


@pytest.fixture
async def store(object_store: ObjectStoreServer) -> AsyncIterator[S3CheckpointStore]:
    """The archive of a run that went on as attempt 2 behind step 40, and ended at step 60."""
    bucket, made = object_store.new_bucket("archive"), S3CheckpointStores()
    for attempt, first, last in ((1, 1, 50), (2, 41, 60)):
        body = encode_archive([record(step, attempt=attempt, loss=2.0) for step in range(first, last + 1)])
        key = records_segment("team", RUN, attempt, first, last)
        object_store.client().put_object(Bucket=bucket, Key=key, Body=body)
    secret = {"AWS_ACCESS_KEY_ID": ADMIN.access_key, "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key}
    yield made.open(f"s3://{bucket}/team", object_store.endpoint, secret)
    await made.close()


async def judged(state: RunState, store: S3CheckpointStore, redis_server: RedisServer) -> Judge:
    """The judgement of an operator that takes the run over, with a Redis that holds nothing of it."""
    bus, judge = RedisBus(redis_server.url, timeout_seconds=2.0), Judge()
    judge.texts[POLICY.hash] = POLICY
    listener = RunListener(RUN, bus, judge, lambda: state, lambda: store)
    try:
        for _ in range(2):
            await listener.read()
    finally:
        await bus.close()
    return judge


def state_of(phase: RunPhase) -> RunState:
    return run_state(
        phase=phase,
        attempts=attempts((None, 0), (1, 40)),
        guards=(GUARD,),
        checkpoints=(checkpoint(40), checkpoint(60, attempt=2)),
    )


@pytest.mark.parametrize("phase", [RunPhase.COMPLETED, RunPhase.STOPPED])
async def test_a_run_that_is_over_is_known_up_to_its_last_checkpoint(
    phase: RunPhase, store: S3CheckpointStore, redis_server: RedisServer
) -> None:
    judge = await judged(state_of(phase), store, redis_server)
    assert judge.last is not None
    assert (judge.last.attempt, judge.last.step) == (2, 60)


async def test_a_run_that_goes_on_waits_for_the_word_of_its_world(
    store: S3CheckpointStore, redis_server: RedisServer
) -> None:
    judge = await judged(state_of(RunPhase.WATCHING), store, redis_server)
    assert judge.last is not None
    assert (judge.last.attempt, judge.last.step) == (1, 40)
