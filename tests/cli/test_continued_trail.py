"""What the command line says of a run that continues another one."""

from typing import Any

from trimtab_cli.checkpoint_view import checkpoint_rows, table_row
from trimtab_cli.exactness import trained_windows
from trimtab_cli.narrative import record_line
from trimtab_cli.trail import Trail, read_trail
from trimtab_contract.data_position import SkipLedger
from trimtab_contract.directives import Action, CheckpointReference, Directive
from trimtab_contract.evidence import BatchLogEntry
from trimtab_contract.journal import (
    GENESIS,
    Actor,
    JournalRecord,
    Phase,
    canonical_bytes,
    plain,
    record_hash,
)
from trimtab_operator.run_state import CheckpointState, Source

OLDER = "lab/older/uid-0"
SOURCE = Source(
    run=OLDER,
    checkpoint=CheckpointReference(key=f"team/{OLDER}/checkpoints/x/manifest.json", sha256="5" * 64, step=10),
    state=CheckpointState.CERTIFIED,
    why="no rule that acts fired up to step 40",
    skip=((3, 5),),
)
OWN = CheckpointReference(key="team/lab/newer/uid-1/checkpoints/y/manifest.json", sha256="6" * 64, step=20)


def trail() -> Trail:
    """A run that has begun behind step 10 of another one, and has saved a checkpoint of its own."""
    directive = Directive(
        epoch=1, seq=2, world=1, attempt=1, action=Action.HOLD, restore=SOURCE.checkpoint, skip=SOURCE.skip
    )
    started = {"directive": directive, "counted": False, "generation": 1, "source": SOURCE}
    why = {"message": f"world 1 continues run {OLDER} behind step 10"}
    records: list[dict[str, Any]] = [
        {"id": "run/Takeover/1", "action": "Takeover", "after": {"epoch": 1}},
        {
            "id": "run#1",
            "action": "StartWorld",
            "phase": Phase.INTENT,
            "after": started,
            "reason": why,
        },
        {"id": "run#1", "action": "StartWorld", "phase": Phase.RESULT, "outcome": "Job newer-1 created"},
        {
            "id": "checkpoint/y/Committed",
            "action": "Committed",
            "after": {"checkpoint": OWN, "attempt": 1, "why": "sizes agree"},
        },
    ]
    bodies: list[tuple[int, bytes]] = []
    head = GENESIS
    for seq, fields in enumerate(records, 1):
        actor = Actor(service_account="operator", pod="p", pod_uid="u", image="i", epoch=1)
        time = f"2026-01-01T00:00:0{seq}+00:00"
        record = JournalRecord(
            seq=seq, prev=head, time=time, actor=actor, **{**fields, "after": plain(fields.get("after"))}
        )
        body = canonical_bytes(record)
        bodies.append((seq, body))
        head = record_hash(body)
    return read_trail(bodies)


def test_the_trail_says_in_one_line_which_run_is_continued_and_what_it_takes_over() -> None:
    (started,) = [one for one in trail().counted if one.action == "StartWorld" and one.phase is Phase.INTENT]
    line = record_line(started)
    assert f"continues run {OLDER} behind step 10" in line
    assert "skipping 3-5" in line


def test_the_list_of_checkpoints_names_the_run_of_the_one_that_is_not_its_own() -> None:
    continued, own = checkpoint_rows(trail(), len)
    assert (continued.run, continued.step, continued.state, continued.surviving) == (OLDER, 10, "Certified", True)
    assert (continued.sha256, continued.known_since) == ("5" * 64, "2026-01-01T00:00:02+00:00")
    assert (own.run, own.attempt) == ("", 1)
    assert table_row(continued, 0.0)[1] == f"of run {OLDER}"
    assert "no rule that acts fired up to step 40" in table_row(continued, 0.0)[5]
    assert table_row(own, 0.0)[1] == "1"


def test_what_it_trained_is_held_against_its_own_batch_log_alone() -> None:
    attempts, ledger = trail().state.attempts, SkipLedger(SOURCE.skip)

    def report(*steps: int) -> tuple[str, ...]:
        entries = [
            BatchLogEntry(attempt=1, step=step, window=ledger.window_of_step(step), sha256="0" * 64) for step in steps
        ]
        return trained_windows({0: entries}, attempts, ledger, 14, {}, 1).problems

    assert report(11, 12, 13, 14) == ()
    assert report(11, 13, 14) == ("rank 0: nothing says which window step 12 trained on; 14 was due",)
