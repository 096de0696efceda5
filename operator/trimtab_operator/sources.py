"""Which checkpoint of another run a new one continues, by `spec.resumeFrom`, and why it cannot. Pure.

Where that run's journal is in the audit bucket, it alone says which checkpoint of a step can be trusted; elsewhere the
hash that a person names does.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab_contract.checkpoints import CheckpointManifest
from trimtab_contract.config_record import bound_changes
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId, manifest_identity

from trimtab_operator.errors import SourceRefused
from trimtab_operator.run_state import Checkpoint, RunState
from trimtab_operator.selection import why_not_restore

SHOWN_STEPS = 8
"""How many steps a refusal names."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `spec.resumeFrom` names; `sha256` is of the manifest, None where it is left out.

    `config` is the `spec.trainer.config` of the job that would go on from it, None of a trainer of its own.
    """

    run: RunId
    step: int
    sha256: str | None
    config: Mapping[str, Any] | None = None


def check_wanted(wanted: Wanted, run: RunId, last_step: int | None) -> None:
    """Raise SourceRefused for what no run can continue, whatever there is of it. `run` is the one that would."""
    if wanted.run == run:
        raise SourceRefused("spec.resumeFrom.run: a run cannot continue itself: name another one")
    if last_step is not None and wanted.step >= last_step:
        message = (
            f"spec.resumeFrom.step: behind step {wanted.step} nothing is left to train, for "
            f"spec.trainer.config.steps is {last_step}: name an earlier step or train more"
        )
        raise SourceRefused(message)


def journaled_checkpoint(wanted: Wanted, state: RunState) -> Checkpoint:
    """The checkpoint of that step that the surviving history of its run has; `state` is the fold of its journal.

    Raises SourceRefused where there is none that may be restored.
    """
    of_step = [one for one in state.checkpoints if one.reference.step == wanted.step]
    known = next((one for one in of_step if state.surviving(one)), of_step[-1] if of_step else None)
    if known is None:
        raise SourceRefused(f"spec.resumeFrom.step: {_unknown(wanted, state)}")
    place = f"the checkpoint of step {wanted.step} of run {wanted.run}"
    if known.of_source and state.source is not None:
        raise SourceRefused(f"spec.resumeFrom.run: {place} belongs to run {state.source.run}: name that one")
    why = why_not_restore(state, known)
    if why:
        raise SourceRefused(f"spec.resumeFrom.step: {place} cannot be continued: {why}; name another step")
    if wanted.sha256 not in {None, known.reference.sha256}:
        message = (
            f"spec.resumeFrom.manifestSHA256: that run's journal knows {place} by another hash: correct it, or leave "
            "it out"
        )
        raise SourceRefused(message)
    return known


def _unknown(wanted: Wanted, state: RunState) -> str:
    if any(_step_of(key) == wanted.step for key in state.deleted):
        return f"the checkpoint of step {wanted.step} of run {wanted.run} was deleted; {_others(state)}"
    return f"run {wanted.run} has no checkpoint of step {wanted.step}; {_others(state)}"


def _others(state: RunState) -> str:
    good = (one for one in state.checkpoints if not one.of_source and not why_not_restore(state, one))
    steps = sorted({one.reference.step for one in good if one.reference.step > 0})
    if not steps:
        return "it has none that can be continued"
    more = f"the newest {SHOWN_STEPS} of " if len(steps) > SHOWN_STEPS else ""
    return f"name one of {more}those it has: {', '.join(map(str, steps[-SHOWN_STEPS:]))}"


def _step_of(key: str) -> int | None:
    """The step in a manifest's key, wherever it lies."""
    name = key.rsplit("/", 2)[-2] if key.count("/") >= 2 else ""
    digits = name.partition("-")[0]
    return int(digits) if digits.isdecimal() else None


def named_reference(wanted: Wanted, root: str, found: Iterable[tuple[str, str]]) -> tuple[CheckpointReference, int]:
    """The manifest with the hash that a person names, and its attempt; `found` are key and SHA-256 of those there.

    Raises SourceRefused where none has it.
    """
    listed = list(found)
    for key, sha256 in listed:
        if sha256 == wanted.sha256:
            try:
                _, attempt = manifest_identity(root, wanted.run, key)
            except ContractError as error:
                raise SourceRefused(f"spec.resumeFrom: {error}") from error
            return CheckpointReference(key=key, sha256=sha256, step=wanted.step), attempt
    place = f"step {wanted.step} of run {wanted.run} in the bucket of checkpoint.uri"
    if not listed:
        raise SourceRefused(f"spec.resumeFrom.step: there is no checkpoint of {place}")
    message = f"spec.resumeFrom.manifestSHA256: no manifest of {place} has this hash: correct it"
    raise SourceRefused(message)


def check_config(wanted: Wanted, manifest: CheckpointManifest) -> None:
    """Raise SourceRefused with each field of the job that makes another model or other samples than were trained.

    Passes where the manifest does not tell: then the trainer finds out by the state itself.
    """
    if wanted.config is None or manifest.config is None:
        return
    changed = bound_changes(manifest.config.changes_to(manifest.config.as_given(wanted.config)))
    if changed:
        message = (
            f"spec.trainer.config: the checkpoint of step {wanted.step} of run {wanted.run} was saved under another "
            f"one: {'; '.join(changed)}; set these fields back, or name another checkpoint"
        )
        raise SourceRefused(message)


def continued_skip(manifest: CheckpointManifest, state: RunState | None) -> tuple[tuple[int, int], ...]:
    """What is skipped behind the checkpoint: what it was saved under, and what its run has found bad since.

    `state` is the fold of that run's journal, None where only the manifest speaks. Raises SourceRefused where the two
    disagree about what was trained.
    """
    saved = SkipLedger.of(manifest.skip)
    if state is None or state.directive is None:
        return saved.ranges
    known = SkipLedger.of((*saved.ranges, *state.directive.skip))
    if not known.agrees_up_to(saved, manifest.step):
        message = (
            f"spec.resumeFrom.step: up to step {manifest.step} the checkpoint skipped {list(saved.ranges)}, and its "
            f"run's journal says {list(state.directive.skip)}: name another step"
        )
        raise SourceRefused(message)
    return known.ranges
