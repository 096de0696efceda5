"""`trimtab checkpoint export` on checkpoints that the trainer saved to a real S3 server."""

import json
import re
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from checkpoint_ranks import RUN, TINY, Ranks, new_state
from click.testing import Result
from control_plane_fixture import ControlPlane
from full_disk import small_disk
from object_store_fixture import ADMIN, ObjectStoreServer
from operator_objects import training_job
from rollback_trail import TrailOptions, rollback_trail
from safetensors import safe_open
from safetensors.torch import load_file
from stored_slices import prefix_of, put_schema_2, with_index
from trimtab_cli.__main__ import app
from trimtab_cli.adapters.object_store import BucketAddress, ObjectStore
from trimtab_cli.checkpoint_export import choose, export_checkpoint
from trimtab_cli.checkpoint_verification import verify_checkpoint
from trimtab_cli.checkpoint_view import CheckpointRow, checkpoint_rows
from trimtab_cli.errors import CliError, NotFound, UsageError
from trimtab_cli.model_config import DEFAULTS
from trimtab_cli.output import Format, Output
from trimtab_cli.trail import read_trail
from trimtab_contract.checkpoints import decode_manifest, encode_manifest, sha256_hex
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.keys import RunId, journal_record
from trimtab_operator.resources import custom_resource_definitions
from trimtab_operator.workload import trainer_config_text
from trimtab_trainer.adapters.s3 import ObjectStore as TrainerStore
from trimtab_trainer.config import DataConfig, TrainerConfig
from trimtab_trainer.config_record import config_record
from trimtab_trainer.model import Transformer, TransformerConfig
from typer.testing import CliRunner

__all__ = ["small_disk"]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md"
SHAPE = replace(TINY, bias=True, tied_head=True, vocab_size=32)
TRAINER: dict[str, Any] = {
    "image": "example/trainer:1",
    "config": {
        "model": {
            "width": 16,
            "layers": 1,
            "heads": 2,
            "sequence": 8,
            "bias": True,
            "tiedHead": True,
            "vocabSize": 32,
        },
        "data": {"path": "/data"},
    },
}
OLDER = {**TRAINER, "config": {"model": {"width": 16, "layers": 1, "heads": 2, "sequence": 8}}}
"""What the stored checkpoint of schema 2 was saved under."""
SEEDS = {0: 1, 300: 2, 320: 3}


@dataclass(frozen=True)
class Saved:
    """A run whose trainer stored the states of `SEEDS`, as its trail tells."""

    server: ObjectStoreServer
    bucket: str
    root: str
    run: RunId
    trail: list[tuple[int, bytes]]

    @property
    def rows(self) -> tuple[CheckpointRow, ...]:
        return checkpoint_rows(read_trail(self.trail), lambda _prefix: 0)

    @property
    def store(self) -> ObjectStore:
        return ObjectStore(BucketAddress(self.bucket, self.server.endpoint, ADMIN.access_key, ADMIN.secret_key))

    @property
    def trainer_store(self) -> TrainerStore:
        return _trainer_store(self.server, self.bucket)

    def export(self, target: Path, step: int = 300, trainer: dict[str, Any] = TRAINER, **changes: Any) -> Any:
        row = replace(choose(self.rows, "demo", step, None, quarantined=True), **changes)
        return export_checkpoint(Output(Format.JSON), self.store, row, trainer, str(self.run), target)

    def damage(self, row: CheckpointRow, name: str, at: int) -> None:
        client, key = self.server.client(), row.key.replace("manifest.json", name)
        body = bytearray(client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        body[at] ^= 1
        client.put_object(Bucket=self.bucket, Key=key, Body=bytes(body))


def _trainer_store(server: ObjectStoreServer, bucket: str) -> TrainerStore:
    return TrainerStore(bucket, endpoint=server.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)


def save(server: ObjectStoreServer, folder: Path) -> Saved:
    bucket, root = server.new_bucket("training"), f"team/{uuid.uuid4().hex}"
    run = RunId("lab", "demo", str(uuid.uuid4()))
    store = _trainer_store(server, bucket)
    ranks = Ranks(store, folder, run_id=run, root=root)
    config = sha256_hex(trainer_config_text(TRAINER["config"]).encode())
    try:
        found = [
            ranks.saved([new_state(seed, SHAPE), new_state(seed, SHAPE)], step, config_sha256=config)
            for step, seed in SEEDS.items()
        ]
        manifests = tuple((one.key, store.get(one.key)) for one in found)
    finally:
        ranks.close()
    return Saved(server, bucket, root, run, rollback_trail(TrailOptions(run=run, manifests=manifests)))


@pytest.fixture(scope="module")
def saved(object_store: ObjectStoreServer, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(object_store, tmp_path_factory.mktemp("world"))


@pytest.fixture
def own_saved(object_store: ObjectStoreServer, tmp_path: Path) -> Saved:
    """For a test that damages what is stored."""
    return save(object_store, tmp_path / "world")


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def documented_code() -> str:
    """The lines of the page that show how to go on with an export."""
    (code,) = [one for one in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if "load_file" in one]
    return code


def test_the_lines_of_the_page_compute_the_logits_of_the_trainers_own_model(saved: Saved, tmp_path: Path) -> None:
    saved.export(tmp_path / "out")
    names: dict[str, Any] = {"folder": str(tmp_path / "out"), "tokens": torch.randint(0, 32, (3, 8))}
    exec(documented_code(), names)
    model = new_state(SEEDS[300], SHAPE).model
    expected = model.eval()(names["tokens"]).logits
    assert float(expected.detach().std()) > 0.1, "logits that are all alike would agree with anything"
    torch.testing.assert_close(names["logits"], expected.detach(), rtol=1e-4, atol=1e-4)


def test_the_weights_are_those_that_were_saved_bit_for_bit(saved: Saved, tmp_path: Path) -> None:
    found = saved.export(tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected = new_state(SEEDS[300], SHAPE).model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    Transformer(SHAPE).load_state_dict(weights)
    assert (found.tensors, found.config_unchanged) == (len(expected), True)
    assert found.sha256 == sha256_hex((tmp_path / "out" / "model.safetensors").read_bytes())
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata()["run"] == str(saved.run)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["hidden_size"], config["num_attention_heads"], config["vocab_size"]) == (16, 2, 32)
    assert config["trimtab"]["step"] == 300
    assert left_in(tmp_path) == ["out", "out/config.json", "out/model.safetensors"]


def test_an_empty_folder_is_taken_and_an_occupied_one_or_a_file_is_not(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    saved.export(tmp_path / "empty")
    before = left_in(tmp_path)
    with pytest.raises(CliError, match="is not empty"):
        saved.export(tmp_path / "empty")
    with pytest.raises(CliError, match="is a file"):
        saved.export(tmp_path / "empty" / "config.json")
    with pytest.raises(CliError, match="cannot be written"):
        saved.export(tmp_path / "empty" / "config.json" / "below")
    assert left_in(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "at"),
    [("__0_0.distcp", -1), ("__1_0.distcp.index.json", 9), ("rank-000001.json", 0), ("manifest.json", 20)],
)
def test_one_flipped_bit_anywhere_and_nothing_is_written(own_saved: Saved, tmp_path: Path, name: str, at: int) -> None:
    own_saved.damage(choose(own_saved.rows, "demo", 300, None, quarantined=False), name, at)
    with pytest.raises(CliError, match=r"step|Step 300 of attempt 1 is not exported: "):
        own_saved.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    own_saved.export(tmp_path / "another", 0)


def test_what_changes_after_it_was_verified_is_noticed_and_nothing_is_left(own_saved: Saved, tmp_path: Path) -> None:
    class Meddled(ObjectStore):
        """A bucket in which somebody changes an object between its two readings."""

        def stretch(self, key: str, offset: int, length: int) -> bytes:
            body = bytearray(super().stretch(key, offset, length))
            body[-1] ^= 1
            return bytes(body)

    row = choose(own_saved.rows, "demo", 300, None, quarantined=False)
    with pytest.raises(CliError, match="is not what was saved"):
        export_checkpoint(
            Output(Format.JSON), Meddled(own_saved.store.address), row, TRAINER, str(own_saved.run), tmp_path / "out"
        )
    assert [one for one in left_in(tmp_path) if not one.startswith("world")] == []


def test_an_index_that_changes_after_it_was_verified_is_noticed(own_saved: Saved, tmp_path: Path) -> None:
    class Meddled(ObjectStore):
        """A bucket in which somebody changes an index between its two readings."""

        def get(self, key: str) -> bytes:
            body = super().get(key)
            return body.replace(b'"length":2', b'"length":1') if key.endswith(".index.json") else body

    row = choose(own_saved.rows, "demo", 300, None, quarantined=False)
    with pytest.raises(CliError, match=r"object __0_0.distcp.index.json is not what was saved"):
        export_checkpoint(
            Output(Format.JSON), Meddled(own_saved.store.address), row, TRAINER, str(own_saved.run), tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_an_index_that_is_that_of_another_object_exports_nothing(own_saved: Saved, tmp_path: Path) -> None:
    store = own_saved.trainer_store
    row = choose(own_saved.rows, "demo", 300, None, quarantined=False)
    reference = CheckpointReference(key=row.key, sha256=row.sha256, step=300)
    other = store.get(f"{prefix_of(reference)}__1_0.distcp.index.json")
    forged = with_index(store, reference, "__0_0.distcp", other)
    with pytest.raises(CliError, match=r"it indexes __1_0.distcp of SHA-256 .*, not __0_0.distcp of"):
        own_saved.export(tmp_path / "out", sha256=forged.sha256)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_schema_2_is_exported_as_well(own_saved: Saved, tmp_path: Path) -> None:
    reference = put_schema_2(own_saved.trainer_store, own_saved.root)
    row = replace(own_saved.rows[0], key=reference.key, sha256=reference.sha256, step=reference.step)
    export_checkpoint(Output(Format.JSON), own_saved.store, row, OLDER, "team/run/0b7c", tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected = new_state(7).model.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_a_disk_that_is_full_on_the_way_leaves_nothing_behind(saved: Saved, small_disk: Path) -> None:
    target = small_disk / "out"
    with pytest.raises(CliError, match=r"out cannot be written: No space left on device; nothing of it is left"):
        saved.export(target)
    assert left_in(small_disk) == []


def test_a_quarantined_one_is_exported_on_demand_only(saved: Saved) -> None:
    with pytest.raises(UsageError, match=r"step 320 .* is quarantined: newer than the first bad step.*--quarantined"):
        choose(saved.rows, "demo", 320, None, quarantined=False)
    assert choose(saved.rows, "demo", 320, None, quarantined=True).step == 320


def test_a_step_without_a_checkpoint_is_answered_with_the_nearest_ones(saved: Saved) -> None:
    with pytest.raises(NotFound, match="no checkpoint of step 310; the nearest are those of 300 and 320"):
        choose(saved.rows, "demo", 310, None, quarantined=False)
    with pytest.raises(NotFound, match="no checkpoint of step 300 of attempt 7"):
        choose(saved.rows, "demo", 300, 7, quarantined=False)
    with pytest.raises(NotFound, match="has no checkpoint"):
        choose((), "demo", 300, None, quarantined=False)


def test_what_the_run_went_back_behind_is_exported_only_by_its_attempt(saved: Saved) -> None:
    row = next(one for one in saved.rows if one.step == 300)
    abandoned = (replace(row, surviving=False),)
    with pytest.raises(UsageError, match=r"step 300 .* is no part of the run's history.*Give --attempt 1"):
        choose(abandoned, "demo", 300, None, quarantined=False)
    assert choose(abandoned, "demo", 300, 1, quarantined=False).step == 300


def test_of_two_attempts_the_surviving_one_is_meant_unless_another_is_named(saved: Saved) -> None:
    row = choose(saved.rows, "demo", 300, None, quarantined=False)
    rows = (row, replace(row, attempt=2, surviving=False), replace(row, step=320, state="Deleting"))
    assert choose(rows, "demo", 300, None, quarantined=False).attempt == 1
    assert choose(rows, "demo", 300, 2, quarantined=False).attempt == 2
    with pytest.raises(NotFound, match="is being deleted"):
        choose(rows, "demo", 320, None, quarantined=True)


def test_a_shape_that_is_not_that_of_the_tensors_is_refused_field_by_field(saved: Saved, tmp_path: Path) -> None:
    other = {**TRAINER, "config": {"model": {"width": 32, "layers": 2, "vocabSize": 32, "bias": True}}}
    with pytest.raises(CliError, match=r"layers: 2, the tensors have 1; width: 32, the tensors have 16"):
        saved.export(tmp_path / "out", trainer=other)
    assert left_in(tmp_path) == []


def test_an_edited_configuration_and_a_trainer_of_ones_own_are_said_to_be_so(saved: Saved, tmp_path: Path) -> None:
    edited = {**TRAINER, "config": {**TRAINER["config"], "steps": 900}}
    assert saved.export(tmp_path / "edited", trainer=edited).config_unchanged is False
    saved.export(tmp_path / "own", trainer={**TRAINER, "command": ["train.py"]})
    config = json.loads((tmp_path / "own" / "config.json").read_text())
    assert (config["model_type"], config["trainer_config"]["model"]["width"]) == ("custom", 16)


def test_what_was_edited_since_is_named_and_the_config_is_that_of_the_weights(own_saved: Saved, tmp_path: Path) -> None:
    """Such as the heads, which the tensors do not show."""
    row = choose(own_saved.rows, "demo", 300, None, quarantined=False)
    client = own_saved.server.client()
    manifest = decode_manifest(client.get_object(Bucket=own_saved.bucket, Key=row.key)["Body"].read())
    recorded = config_record(TrainerConfig(data=DataConfig(path="/data"), steps=90, global_batch=2, model=SHAPE))
    body = encode_manifest(msgspec.structs.replace(manifest, config=recorded))
    client.put_object(Bucket=own_saved.bucket, Key=row.key, Body=body)
    known = {"steps": 90, "globalBatch": 2}
    edited = {**TRAINER, "config": {**TRAINER["config"], **known, "model": {**TRAINER["config"]["model"], "heads": 4}}}

    found = own_saved.export(tmp_path / "out", trainer=edited, sha256=sha256_hex(body))
    assert found.changes == ("model.heads: was 2, is 4",)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_attention_heads"], config["hidden_size"], config["tie_word_embeddings"]) == (2, 16, True)
    assert "dropout" not in config

    told = verify_checkpoint(own_saved.store, row.key, sha256_hex(body), edited)
    assert (told.problems, told.misfits) == ((), ("model.heads: was 2, is 4",))
    assert verify_checkpoint(own_saved.store, row.key, sha256_hex(body), {**edited, "command": ["x"]}).misfits == ()
    as_saved = {**TRAINER, "config": {**TRAINER["config"], **known}}
    assert own_saved.export(tmp_path / "same", trainer=as_saved, sha256=sha256_hex(body)).changes == ()


def test_the_defaults_of_a_shape_are_the_trainers_own() -> None:
    own = TransformerConfig()
    snake = {re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name): value for name, value in DEFAULTS.items()}
    assert snake == {name: getattr(own, name) for name in snake}


@pytest.fixture
def program(saved: Saved, control_plane: ControlPlane) -> Any:
    definitions = custom_resource_definitions()
    control_plane.apply(*definitions)
    names = [f"crd/{definition['metadata']['name']}" for definition in definitions]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
    namespace = control_plane.create_namespace("export")
    place = {"uri": f"s3://{saved.bucket}/{saved.root}", "endpoint": saved.server.endpoint}
    control_plane.apply(training_job("demo", namespace, trainer=TRAINER, checkpoint=place))
    uid = control_plane.kubectl("get", "tj", "demo", f"-n={namespace}", "-o=jsonpath={.metadata.uid}")
    audit, client = saved.server.new_bucket("audit"), saved.server.client()
    for seq, body in saved.trail:
        client.put_object(Bucket=audit, Key=journal_record(RunId(namespace, "demo", uid), seq), Body=body)
    environment = {
        "TRIMTAB_AUDIT_ENDPOINT": saved.server.endpoint,
        "TRIMTAB_AUDIT_BUCKET": audit,
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": ADMIN.access_key,
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": ADMIN.secret_key,
        "AWS_ACCESS_KEY_ID": ADMIN.access_key,
        "AWS_SECRET_ACCESS_KEY": ADMIN.secret_key,
    }

    def run(*arguments: str) -> Result:
        options = [f"--kubeconfig={control_plane.kubeconfig}", f"--namespace={namespace}"]
        return CliRunner().invoke(app, ["checkpoint", "export", "demo", *arguments, *options], env=environment)

    return run


def test_the_command_writes_the_folder_that_is_named(program: Any, tmp_path: Path) -> None:
    result = program("300", "-o", str(tmp_path / "out"), "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["folder"] == str(tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == new_state(1, SHAPE).model.state_dict().keys()
    told = program("0", "-o", str(tmp_path / "told"))
    assert "tensors" in told.stdout
    assert "SHA-256" in told.stdout
    assert isinstance(program("300", "-o", "json").exception, UsageError)
    assert RUN.name not in told.stdout
