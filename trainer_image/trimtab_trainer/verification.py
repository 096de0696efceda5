"""`python -m trimtab_trainer.verification`: a process in a Job of its own, which reads checkpoints back.

It holds the job's credentials, reads, and writes nothing but its termination message. It exits with 0 when it can say
of every checkpoint whether it is what was saved, also where one is not; else with 1, and says why in one sentence.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError, NewerManifest
from trimtab_contract.read_back import (
    JOB_VARIABLE,
    ORDER_VARIABLE,
    ReadBack,
    ReadBackAnswer,
    ReadBackReport,
    decode_order,
    encode_report,
)

from trimtab_trainer.adapters.s3 import ObjectStore
from trimtab_trainer.errors import StoreError
from trimtab_trainer.fields import InvalidFields, raise_if_any
from trimtab_trainer.read_back import PATIENCE_SECONDS, Reader
from trimtab_trainer.termination import termination_path

logger = logging.getLogger("trimtab_trainer.verification")


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be read back, in this order, and where it lies."""

    job: str
    references: tuple[CheckpointReference, ...]
    bucket: str
    endpoint: str

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Order":
        """Read environment variables; raises InvalidFields with one sentence per missing or wrong one."""
        needed = (
            JOB_VARIABLE,
            ORDER_VARIABLE,
            "TRIMTAB_CHECKPOINT_URI",
            "TRIMTAB_S3_ENDPOINT",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
        )
        problems = [f"{name}: missing from the environment" for name in needed if not variables.get(name)]
        location = variables.get("TRIMTAB_CHECKPOINT_URI", "")
        bucket = location.removeprefix("s3://").partition("/")[0]
        if location and not (location.startswith("s3://") and bucket):
            problems.append(f"TRIMTAB_CHECKPOINT_URI: {location!r} must be s3://BUCKET or s3://BUCKET/PREFIX")
        references: tuple[CheckpointReference, ...] = ()
        try:
            references = decode_order(variables.get(ORDER_VARIABLE) or "[]")
        except ContractError as error:
            problems.append(f"{ORDER_VARIABLE}: {error}")
        raise_if_any(problems)
        return cls(variables[JOB_VARIABLE], references, bucket, variables["TRIMTAB_S3_ENDPOINT"])


def read_back(order: Order, reader: Reader, patience_seconds: float = PATIENCE_SECONDS) -> ReadBackReport:
    """Read each ordered checkpoint whole; a store that does not answer is asked for so long, for each of them."""
    answers: list[ReadBackAnswer] = []
    for reference in order.references:
        answer = _answer(reference, reader, time.monotonic() + patience_seconds)
        logger.info("step %d: %s %s", reference.step, answer.found, answer.detail)
        answers.append(answer)
    return ReadBackReport(job=order.job, answers=tuple(answers))


def _answer(reference: CheckpointReference, reader: Reader, deadline: float) -> ReadBackAnswer:
    try:
        damage = reader.damage(reference, deadline)
    except (StoreError, NewerManifest) as error:
        return ReadBackAnswer(sha256=reference.sha256, found=ReadBack.UNKNOWN, detail=str(error))
    if damage is None:
        return ReadBackAnswer(sha256=reference.sha256, found=ReadBack.VERIFIED)
    detail = f"object {damage.object_name}: {damage.detail}"
    return ReadBackAnswer(sha256=reference.sha256, found=ReadBack.DAMAGED, detail=detail)


def main(variables: Mapping[str, str] = os.environ) -> int:
    """Do what the environment orders, and leave the answer in the termination message; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        order = Order.read(variables)
    except InvalidFields as error:
        return _failed(f"nothing was read back: {'; '.join(error.problems)}")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    report = read_back(order, Reader(ObjectStore(order.bucket, endpoint=order.endpoint), stopped))
    try:
        termination_path(variables).write_text(encode_report(report) + "\n")
    except OSError as error:
        return _failed(f"the answer could not be left in the termination message: {error}")
    steps = {one.sha256: one.step for one in order.references}
    unknown = next((one for one in report.answers if one.found is ReadBack.UNKNOWN), None)
    if unknown is not None:
        return _failed(f"the checkpoint of step {steps[unknown.sha256]} could not be read back: {unknown.detail}")
    return 0


def _failed(sentence: str) -> int:
    logger.error(sentence)
    return 1


if __name__ == "__main__":
    sys.exit(main())
