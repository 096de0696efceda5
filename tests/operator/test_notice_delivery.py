"""A notice on its whole way, with a real API server, Redis, S3 and webhook: from the journal, and back into it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from control_plane_fixture import ControlPlane
from notice_receiver import Receiver, receiver
from operator_objects import training_job
from operator_ports import IDENTITY
from trimtab_contract.journal import JournalRecord, parse_record
from trimtab_contract.keys import RunId
from trimtab_operator.commands import Draft
from trimtab_operator.journal import RunJournal
from trimtab_operator.notifier import Notifier
from trimtab_operator.oversight import Oversight
from trimtab_operator.reconciler import Ports
from trimtab_operator.run_state import JournalAction, RunPhase
from trimtab_operator.supervisor import Supervisor

__all__ = ["receiver"]


async def journal_of(ports: Ports, run: RunId) -> list[JournalRecord]:
    return [parse_record(body) for _, body in await ports.journal.read(run)]


async def lead(ports: Ports, receiver: Receiver, run: RunId, until: Sequence[str]) -> list[JournalRecord]:
    """Let an operator of its own lead until the last of these actions in the run's journal stand in this order.

    Returns the records of these actions.
    """
    webhook = receiver.webhook()
    notifier = Notifier(webhook, may_send=ports.lease.valid)
    supervisor = Supervisor(replace(ports, oversight=Oversight(notifier=notifier)))
    work = asyncio.create_task(notifier.work())
    supervisor.see(await ports.cluster.training_job(run.namespace, run.name))
    try:
        while True:
            records = [record for record in await journal_of(ports, run) if record.action in until]
            if [record.action for record in records][-len(until) :] == list(until):
                return records
            assert not work.done()
            await asyncio.sleep(0.05)
    finally:
        await supervisor.close()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await webhook.close()


async def test_what_was_delivered_is_in_the_journal_and_no_new_leader_repeats_it(
    api: ControlPlane, ports: Ports, receiver: Receiver
) -> None:
    (ours,) = ports.namespaces
    api.apply(training_job("demo", ours))
    run = RunId(ours, "demo", (await ports.cluster.training_job(ours, "demo"))["metadata"]["uid"])
    journal = RunJournal(ports.journal, run, IDENTITY)
    await journal.take_over(0)
    await journal.append(
        Draft(
            action=JournalAction.NEEDS_HUMAN,
            id="run/NeedsHuman/2",
            reason={"message": "every update was withheld <!channel>"},
            after={"phase": RunPhase.NEEDS_HUMAN.value},
        )
    )
    records = await lead(ports, receiver, run, ["NeedsHuman", "Takeover", "NoticeSent"])
    assert records[-1].outcome == "Delivered"
    assert (records[-1].after or {})["notice"] == "run/NeedsHuman/2"
    (posted,) = receiver.received
    assert posted["text"] == f"*{ours}/demo*: needs a person: every update was withheld &lt;!channel&gt;"
    assert posted["seq"] == 2
    # The next leader owes one more; what was delivered before it would be said again along with that.
    journal = RunJournal(ports.journal, run, IDENTITY)
    await journal.take_over(0)
    await journal.append(Draft(action=JournalAction.FAILED, id="run/Failed/6", reason={"message": "it is over"}))
    await lead(ports, receiver, run, ["Failed", "Takeover", "NoticeSent"])
    assert [body["message"] for body in receiver.received[1:]] == ["it is over"]
