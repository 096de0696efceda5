"""What a held or restored world measured, read with the job's own credentials: believed only as far as was asked."""

import re

from trimtab_contract.checkpoints import sha256_hex
from trimtab_contract.directives import Ack, Directive
from trimtab_contract.errors import ContractError
from trimtab_contract.evidence import ProbeEvidence, decode_probe
from trimtab_contract.keys import RunId, evidence_object

from trimtab_operator.adapters.ports import CheckpointStore
from trimtab_operator.errors import CredentialsRefused, NotFound, ObjectTooLarge, StoreRefused
from trimtab_operator.extent import LARGEST_LOSS
from trimtab_operator.incidents import Incident

MAX_PROBE_BYTES = 4 * 1024 * 1024

_NAME = re.compile(r"[A-Za-z0-9.-]{1,200}")


class ProbeProblem(Exception):
    """Why a probe cannot be believed: one sentence, and nothing of what a stranger wrote."""


async def read_probe(
    store: CheckpointStore, run: RunId, ack: Ack, incident: Incident, directive: Directive | None
) -> tuple[ProbeEvidence, bytes]:
    """What a restored world measured, and its bytes; raises ProbeProblem, StoreUnavailable, CredentialsRefused."""
    probe, body = await _read(store, run, ack)
    trouble = probe_trouble(probe, incident, directive)
    if trouble:
        raise ProbeProblem(trouble)
    return probe, body


async def read_suspect(
    store: CheckpointStore, run: RunId, ack: Ack, directive: Directive | None
) -> tuple[ProbeEvidence, bytes]:
    """What a held world measured on the suspect state, and its bytes; raises like `read_probe`."""
    probe, body = await _read(store, run, ack)
    trouble = suspect_trouble(probe, directive)
    if trouble:
        raise ProbeProblem(trouble)
    return probe, body


async def _read(store: CheckpointStore, run: RunId, ack: Ack) -> tuple[ProbeEvidence, bytes]:
    """The object that a Diagnosed names, and its bytes, whatever was asked for."""
    if ack.evidence is None:
        raise ProbeProblem("the trainer names no evidence of its probe")
    prefix = evidence_object(store.root, run, ack.attempt, "")
    key = ack.evidence.key
    if not key.startswith(prefix) or not _NAME.fullmatch(key.removeprefix(prefix)):
        raise ProbeProblem("the probe's evidence is no object of this attempt")
    try:
        body = await store.get(key, MAX_PROBE_BYTES)
        if sha256_hex(body) != ack.evidence.sha256:
            raise ProbeProblem("the probe's SHA-256 is not the one the trainer named")
        probe = decode_probe(body)
    except NotFound as error:
        raise ProbeProblem("the probe's evidence does not exist") from error
    except ObjectTooLarge as error:
        raise ProbeProblem("the probe's evidence is larger than any probe can be") from error
    except CredentialsRefused:
        raise
    except StoreRefused as error:
        raise ProbeProblem("S3 does not hand out the probe's evidence") from error
    except ContractError as error:
        raise ProbeProblem(str(error)) from error
    return probe, body


def probe_trouble(probe: ProbeEvidence, incident: Incident, directive: Directive | None) -> str:
    """Why a probe is no answer to what the incident's restore asked for; empty when it is one."""
    if incident.flagged is None:
        return "nothing was to be measured"
    first, last = incident.flagged
    last += incident.latch.remediation.probe
    if probe.attempt != incident.restoring_attempt:
        return "the probe was measured in another attempt"
    if probe.state != incident.target:
        return "the probe was measured on another state than the restored one"
    return _windows_trouble(probe, (first, last), directive)


def suspect_trouble(probe: ProbeEvidence, directive: Directive | None) -> str:
    """Why a probe is no answer to what a held world was asked; empty when it is one."""
    if directive is None or directive.diagnose is None:
        return "nothing was to be measured"
    if probe.attempt != directive.attempt:
        return "the probe was measured in another attempt"
    if probe.state is not None:
        return "the probe was measured on a checkpoint, and not on the held state"
    return _windows_trouble(probe, directive.diagnose.windows, directive)


def _windows_trouble(probe: ProbeEvidence, windows: tuple[int, int], directive: Directive | None) -> str:
    first, last = windows
    if [window for window, _ in probe.windows] != list(range(first, last + 1)):
        return f"the probe's windows are not {first} to {last}, which were asked for"
    asked = directive.diagnose if directive is not None else None
    control = [window for window, _ in probe.control]
    if asked is not None and control != sorted(asked.control):
        return "the probe's control windows are not the ones that were asked for"
    if any(loss is not None and not abs(loss) <= LARGEST_LOSS for _, loss in (*probe.windows, *probe.control)):
        return "the probe names a loss that 32 bits cannot hold"
    return ""
