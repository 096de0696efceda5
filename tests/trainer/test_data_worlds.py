"""A run on several sources of every kind, on disk and in S3: two ranks, and one rank that goes on from there."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from object_store_fixture import ADMIN, ObjectStoreServer
from redis_fixture import RedisServer
from trainer_world import Run
from trimtab_contract import keys
from trimtab_contract.data_description import decode_data
from trimtab_contract.directives import AckState, Action
from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.batches import Batch
from trimtab_trainer.config import read_config
from trimtab_trainer.data import DataReader, Windows, documents_of, targets_of
from trimtab_trainer.loop import Trainee
from trimtab_trainer.tensors import floats

pytestmark = pytest.mark.timeout(600)

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon"]


@pytest.fixture
def run(redis_server: RedisServer, object_store: ObjectStoreServer, tmp_path: Path) -> Iterator[Run]:
    """A run on documents in S3 by one half, token ids on disk and text files; the logs are printed at the end."""
    run = Run(redis_server, object_store, tmp_path, object_store.new_bucket(), {"steps": 8}, checkpoint_every=4)
    random = np.random.default_rng(3)
    for part in range(2):
        texts = [" ".join(random.choice(WORDS, random.integers(1, 40))) for _ in range(60)]
        body = "".join(json.dumps({"body": text}) + "\n" for text in texts).encode()
        object_store.client().put_object(Bucket=run.bucket, Key=f"corpus/part-{part}.jsonl", Body=body)
        (tmp_path / f"part-{part}.txt").write_text(" ".join(random.choice(WORDS, 500)))
    (tmp_path / "train.bin").write_bytes(random.integers(0, 250, 5_000).astype("<u2").tobytes())
    run.config["data"] = {
        "order": "shuffled",
        "packing": {"boundaries": "masked", "attention": "masked"},
        "sources": [
            {"path": f"s3://{run.bucket}/corpus/part-*.jsonl", "kind": "jsonl", "textField": "body", "weight": 0.5},
            {"path": str(tmp_path / "train.bin"), "kind": "uint16", "weight": 0.3, "name": "ids"},
            {"path": f"{tmp_path}/part-*.txt", "kind": "text", "weight": 0.2, "name": "texts"},
        ],
    }
    yield run
    for log in sorted(tmp_path.glob("log-*")):
        print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")


def first_window(run: Run, **packing: str) -> tuple[float, list[float]]:
    """Loss and largest logits of the first window, computed here by one rank from the same data."""
    config = read_config(json.dumps(run.config | {"data": run.config["data"] | {"packing": packing}}))
    store = ObjectStore(
        run.bucket, endpoint=run.store.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key
    )
    reader = DataReader(
        config.data, sequence=config.model.sequence, global_batch=config.global_batch, store_of=lambda _bucket: store
    )
    windows, trainee = Windows(*reader.opened()), Trainee(config)
    samples = windows.read(0)
    documents = documents_of(samples, windows.attention_separator)
    targets = targets_of(samples, windows.separator)
    batch = Batch(1, 1, 0, samples[:, :-1], targets, windows.positions(0), None, documents)
    windows.close()
    largest = trainee.forward(batch, exact=True).attention.max_logit
    return trainee.losses(samples).mean().item(), floats(largest)


def test_a_run_on_a_mixture_says_what_it_read_and_goes_on_with_another_number_of_ranks(run: Run) -> None:
    with run.world():
        run.direct(Action.RUN)
        run.ack(AckState.FINISHED)
    target = run.saved(4)
    with run.world(2, ranks=1):
        assert run.ack(AckState.RESTORED, run.direct(Action.HOLD, world=2, attempt=2, restore=target)).step == 4
        run.direct(Action.RUN, world=2, attempt=2, restore=target)
        run.ack(AckState.FINISHED, world=2)
    before, again = run.records(1), run.records(2)
    loss, largest = first_window(run, **run.config["data"]["packing"])
    assert before[1].scalars["loss"] == pytest.approx(loss, rel=5e-6)
    assert before[1].vectors["qk_max_logit"].values() == pytest.approx(largest, rel=1e-5)
    # Attention to earlier documents would have shown.
    assert first_window(run, boundaries="masked")[0] != pytest.approx(loss, rel=5e-6)
    assert [again[step].window for step in range(5, 9)] == [before[step].window for step in range(5, 9)]
    for step in range(5, 9):
        # One rank adds up in another order than two.
        assert again[step].scalars["loss"] == pytest.approx(before[step].scalars["loss"], rel=1e-3)

    key = keys.data_object("", run.id, 1)
    found = run.store.client().list_objects_v2(Bucket=run.bucket)["Contents"]
    (described,) = [one["Key"] for one in found if one["Key"].endswith(key)]
    data = decode_data(run.store.client().get_object(Bucket=run.bucket, Key=described)["Body"].read())
    assert [source.weight for source in data.sources] == [0.5, 0.3, 0.2]
    samples = [one for window in range(5) for one in data.data_order().samples_of_window(window)]
    assert [sum(one.source == number for one in samples) for number in range(3)] == [20, 12, 8]
