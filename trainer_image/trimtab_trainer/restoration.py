"""Restoring a checkpoint, and the probe that must pass before anybody may go on from it."""

import logging
import math
from collections.abc import Mapping, Sequence

from trimtab_contract.checkpoints import CheckpointManifest, samples_sha256
from trimtab_contract.config_record import OLDER_MANIFEST, bound_changes
from trimtab_contract.data_description import DataDescription
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference, Reason

from trimtab_trainer.checkpointing.state import tensors_of
from trimtab_trainer.config_record import config_record
from trimtab_trainer.errors import RestoreFailed
from trimtab_trainer.optim import RateOverride, parameter_checksum, whole_checksum
from trimtab_trainer.runtime import Runtime

logger = logging.getLogger(__name__)

LOSS_TOLERANCE = 1e-3
"""How far the loss may lie from the recorded one when it is added up in another order: by another number of ranks, in
other micro-batches, by other processors, another PyTorch or another version of the trainer."""


def restore(runtime: Runtime, target: CheckpointReference, ledger: SkipLedger) -> None:
    """Put a checkpoint in place of the live state on every rank, and prove that it is the state that was saved.

    Raises:
        RestoreFailed: on all ranks alike. With reason ProbeFailed, or ConfigMismatch where the configuration or the
            data are not what the checkpoint was saved under, the restored state may be in memory and must not be
            trained on.
        DataUnreadable: on the rank whose data cannot be read, which says nothing of the checkpoint.
        PeerLost: another rank is gone.
    """
    manifest = runtime.checkpointer.restore(
        target, runtime.training_state, ledger, lambda saved, structure: misfit(runtime, saved, structure)
    )
    found = _anywhere(runtime, _problem(runtime, manifest, _checksum(runtime)))
    other_data = "" if found else _anywhere(runtime, _data_problem(runtime, manifest))
    if problem := found or other_data or _loss_problem(runtime, manifest):
        edited = manifest.config_sha256 != runtime.fingerprints.config
        reason = Reason.CONFIG_MISMATCH if edited or other_data else Reason.PROBE_FAILED
        changed = changed_config(runtime, manifest) if edited else ()
        raise RestoreFailed(reason, target.key, "; ".join((problem, *changed)))
    if allowed := changes(runtime, manifest):
        logger.warning("restored under another configuration: %s", "; ".join(allowed.values()))
    runtime.state.restored_to(target, manifest.step, ledger)
    runtime.vitals.step = manifest.step


def misfit(runtime: Runtime, manifest: CheckpointManifest, structure: str) -> str:
    """Why a checkpoint is not restored under this configuration, with each field that differs; empty where it may be.

    Whatever it holds, its steps were trained by another model, on other data or under another seed: those are to blame.
    `structure` says which tensors are otherwise; any field may be the cause of that.
    """
    changed = changes(runtime, manifest)
    told = dict.fromkeys(
        (
            *changed_seed(runtime.config.seed, manifest),
            *(changed.values() if structure else bound_changes(changed)),
            *changed_data(runtime.data.description, manifest),
        )
    )
    return "; ".join((*told, *((structure,) if structure else ()), *(_untold(manifest) if structure else ())))


def changed_config(runtime: Runtime, manifest: CheckpointManifest) -> tuple[str, ...]:
    """One sentence for every field that differs from what the checkpoint was saved under, whether it may or not."""
    return (*changes(runtime, manifest).values(), *_untold(manifest))


def changes(runtime: Runtime, manifest: CheckpointManifest) -> Mapping[str, str]:
    """These sentences by the name of the field; none where the manifest does not tell."""
    return {} if manifest.config is None else manifest.config.changes_to(config_record(runtime.config))


def _untold(manifest: CheckpointManifest) -> tuple[str, ...]:
    return (OLDER_MANIFEST,) if manifest.config is None else ()


def changed_data(now: DataDescription, manifest: CheckpointManifest) -> tuple[str, ...]:
    """What is otherwise with the data than when the checkpoint was saved: one sentence a field."""
    saved = manifest.evaluation.data
    return () if saved is None else now.changes_since(saved)


def changed_seed(now: int, manifest: CheckpointManifest) -> tuple[str, ...]:
    """Likewise of `seed`, of which no measured loss tells: dropout is off while it is measured."""
    saved = manifest.evaluation.seed
    return () if saved in {None, now} else (f"seed: was {saved}, is {now}",)


def _anywhere(runtime: Runtime, own: str) -> str:
    """What the first rank that found something found, the same on all of them."""
    return next((text for text in runtime.world.gather_text(own) if text), "")


def _checksum(runtime: Runtime) -> str:
    """The checksum of the state in place; of a sharded one, with the parts of all ranks."""
    own = parameter_checksum(tensors_of(runtime.training_state.flat()).items())
    parts = [int(text, 16) for text in runtime.world.gather_text(f"{own.sharded:x}")]
    return f"{whole_checksum(own.total, own.sharded, parts):016x}"


def _problem(runtime: Runtime, manifest: CheckpointManifest, live: str) -> str:
    """What this rank finds wrong without asking the others; empty when all is as recorded."""
    count = runtime.training_state.optimizer.count
    if count != manifest.optimizer_steps:
        return f"the optimizer has made {count} updates, the manifest says {manifest.optimizer_steps}"
    if live != manifest.replica_checksum:
        return f"the state in place has checksum {live}, the manifest says {manifest.replica_checksum}"
    override = None if manifest.lr is None else RateOverride(manifest.lr.scale, manifest.lr.until_step)
    rate = runtime.trainee.learning_rate(manifest.step + 1, override)
    if rate != manifest.learning_rate:
        return f"the learning rate after the restore would be {rate}, the manifest says {manifest.learning_rate}"
    window = SkipLedger(manifest.skip).window_of_step(manifest.step + 1)
    if window != manifest.evaluation.window:
        return f"the next window by the manifest's ledger is {window}, the manifest says {manifest.evaluation.window}"
    return ""


def _data_problem(runtime: Runtime, manifest: CheckpointManifest) -> str:
    """What is otherwise with the window that follows: no checkpoint is to blame for the data."""
    recorded = manifest.evaluation
    if recorded.samples_sha256:
        shares = runtime.world.gather_text(" ".join(runtime.data.sample_digests(recorded.window)))
        same = samples_sha256(digest for share in shares for digest in share.split()) == recorded.samples_sha256
    else:
        same = runtime.data.window_digest(recorded.window) == recorded.window_sha256
    return "" if same else f"window {recorded.window} has other bytes than when the checkpoint was saved"


def _loss_problem(runtime: Runtime, manifest: CheckpointManifest) -> str:
    """Compare the loss of the recorded window: bit for bit where it is computed as it was then, nearly otherwise."""
    recorded = manifest.evaluation.losses
    if manifest.evaluation.mode == "Training" and None in recorded:
        logger.warning("nothing is known of the loss behind step %d: the step after it was not finite", manifest.step)
        return ""
    measured = runtime.probed_losses(manifest.evaluation)
    if len(recorded) == len(measured) and _computed_alike(runtime, manifest):
        same = all(_same(now, then) for now, then in zip(measured, recorded, strict=True))
    else:
        now, then = _mean(measured), _mean(recorded)
        same = abs(now - then) <= LOSS_TOLERANCE or not (math.isfinite(now) or math.isfinite(then))
    if same:
        return ""
    return f"window {manifest.evaluation.window} has losses {list(measured)}, recorded were {list(recorded)}"


def _computed_alike(runtime: Runtime, manifest: CheckpointManifest) -> bool:
    """Whether nothing is known that adds up in another order than when the checkpoint was saved."""
    saved = manifest.evaluation
    return (
        saved.micro_batch in {None, runtime.micro_batch}
        and saved.processors in {None, runtime.processors}
        and manifest.code_sha256 == runtime.fingerprints.code
    )


def _same(measured: float, recorded: float | None) -> bool:
    return not math.isfinite(measured) if recorded is None else measured == recorded


def _mean(losses: Sequence[float | None]) -> float:
    return sum(math.nan if loss is None else loss for loss in losses) / len(losses)
