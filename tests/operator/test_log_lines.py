"""The operator's log: one JSON object a line, whoever speaks, so that what collects logs can read all of them."""

import json
import subprocess
import sys

SPEAKERS = """
import logging, warnings
import structlog
from trimtab_operator.__main__ import configure_logging
configure_logging("info")
structlog.stdlib.get_logger("trimtab_operator").info("the lease is ours", epoch=3)
logging.getLogger("kopf.objects").warning("watching %s failed", "trainingjobs")
logging.getLogger("urllib3").info("too quiet to be heard")
try:
    {}["seq"]
except KeyError:
    logging.getLogger("asyncio").exception("a task\\ndied")
    structlog.stdlib.get_logger("trimtab_operator").exception("defect", run="lab/a")
warnings.warn("old spelling", DeprecationWarning, stacklevel=1)
"""


def test_every_line_is_one_json_object_whichever_library_says_it() -> None:
    command = [sys.executable, "-W", "default::DeprecationWarning", "-c", SPEAKERS]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    assert said.stderr == ""
    lease, kopf, task, defect, warning = lines
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert (lease["level"], lease["logger"], lease["event"], lease["epoch"]) == (
        "info",
        "trimtab_operator",
        "the lease is ours",
        3,
    )
    assert (kopf["level"], kopf["logger"]) == ("warning", "kopf.objects")
    assert kopf["event"] == "watching trainingjobs failed"
    assert task["event"] == "a task\ndied"
    assert (defect["level"], defect["run"]) == ("error", "lab/a")
    assert all("KeyError: 'seq'" in line["exception"] for line in (task, defect))
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert "old spelling" in warning["event"]
