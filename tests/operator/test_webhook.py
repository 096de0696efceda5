"""Notices on their way to a real HTTP server that is slow, refuses, hangs or sends them elsewhere."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from notice_receiver import SECRET, Receiver, receiver
from pydantic import SecretStr
from trimtab_contract.keys import RunId
from trimtab_operator import notifier
from trimtab_operator.adapters.webhook import HttpWebhook
from trimtab_operator.errors import OperatorError, WebhookRefused, WebhookUnavailable
from trimtab_operator.notices import notice_key
from trimtab_operator.notifier import MAX_TRIES, QUEUE_LENGTH, Notifier, wait_seconds
from trimtab_operator.observation import NoticeOutcome
from trimtab_operator.run_state import Notice, NoticeKind

RUN = RunId("lab", "demo", "uid")

__all__ = ["receiver"]


def notice(number: int = 1, **changes: Any) -> Notice:
    base: dict[str, Any] = {"kind": NoticeKind.NEEDS_HUMAN, "id": f"demo-a1-s5/NeedsHuman/{number}", "message": "help"}
    return Notice(**{**base, "time": "2026-01-01T00:00:00+00:00", **changes})


class Sending:
    """A notifier at work whose waits are noted and not waited for."""

    def __init__(self, webhook: HttpWebhook, may_send: Callable[[], bool] = lambda: True) -> None:
        self.waits: list[float] = []
        self.go = asyncio.Event()
        self.go.set()
        self.settled: asyncio.Queue[NoticeOutcome] = asyncio.Queue()
        self.notifier = Notifier(webhook, may_send=may_send, pause=self._pause)
        self.notifier.settled = lambda _run, _notice, outcome: self.settled.put_nowait(outcome)
        self._webhook = webhook
        self._work = asyncio.create_task(self.notifier.work())

    async def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.go.wait()

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        await self._webhook.close()


@pytest.fixture
async def sending(receiver: Receiver) -> AsyncIterator[Sending]:
    sending = Sending(receiver.webhook())
    yield sending
    await sending.close()


async def test_a_notice_arrives_as_text_for_slack_and_as_fields_for_everybody_else(
    receiver: Receiver, sending: Sending
) -> None:
    sent = notice(incident="demo-a1-s5", rule="loss-spike")
    sending.notifier.offer(RUN, (sent,))
    outcome = await sending.settled.get()
    assert outcome == NoticeOutcome(id=sent.id, delivered=True, message="delivered at try 1")
    (body,) = receiver.received
    assert body["text"] == "*lab/demo*: needs a person: help"
    assert {name: body[name] for name in ("kind", "namespace", "job", "incident", "rule", "message")} == {
        "kind": "NeedsHuman",
        "namespace": "lab",
        "job": "demo",
        "incident": "demo-a1-s5",
        "rule": "loss-spike",
        "message": "help",
    }
    assert receiver.headers[0]["Idempotency-Key"] == body["id"] == notice_key(RUN, sent)


async def test_an_error_of_the_server_is_tried_again_with_longer_and_longer_waits(
    receiver: Receiver, sending: Sending
) -> None:
    receiver.answers = [web.Response(status=500), web.Response(status=503), web.Response(status=204)]
    sending.notifier.offer(RUN, (notice(),))
    assert (await sending.settled.get()).message == "delivered at try 3"
    first, second = sending.waits
    assert 0.5 <= first <= 1 <= second <= 2
    assert len({body["id"] for body in receiver.received}) == 1


async def test_it_is_given_up_after_a_bounded_number_of_tries(receiver: Receiver, sending: Sending) -> None:
    receiver.answers = [web.Response(status=500)]
    sending.notifier.offer(RUN, (notice(),))
    outcome = await sending.settled.get()
    assert not outcome.delivered
    assert outcome.message == f"given up after {MAX_TRIES} tries: the webhook answers with status 500"
    assert len(receiver.received) == MAX_TRIES


async def test_what_the_run_has_to_say_no_more_is_not_tried_again(receiver: Receiver, sending: Sending) -> None:
    receiver.answers = [web.Response(status=500), web.Response()]
    sending.go.clear()
    sending.notifier.owe(RUN, (notice(1),))
    while not sending.waits:
        await asyncio.sleep(0.01)
    sending.notifier.owe(RUN, (notice(2),))
    assert (await sending.settled.get()).id == notice(2).id
    sending.go.set()
    while notice_key(RUN, notice(1)) in sending.notifier._known:  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0.01)
    assert sending.settled.empty()
    assert len(receiver.received) == 2


async def test_a_server_that_asks_for_time_gets_it(receiver: Receiver, sending: Sending) -> None:
    receiver.answers = [web.Response(status=429, headers={"Retry-After": "42"}), web.Response()]
    sending.notifier.offer(RUN, (notice(),))
    await sending.settled.get()
    assert sending.waits == [42.0]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(receiver: Receiver, sending: Sending, status: int) -> None:
    elsewhere = f"http://127.0.0.1:{receiver.port}/elsewhere"
    receiver.answers = [web.Response(status=status, headers={"Location": elsewhere}), web.Response()]
    sending.notifier.offer(RUN, (notice(),))
    outcome = await sending.settled.get()
    assert not outcome.delivered
    assert "redirects, which is not followed" in outcome.message
    assert len(receiver.received) == 1


async def test_what_is_refused_is_not_tried_again(receiver: Receiver, sending: Sending) -> None:
    receiver.answers = [web.Response(status=404)]
    sending.notifier.offer(RUN, (notice(),))
    assert "correct its address in the operator's Secret" in (await sending.settled.get()).message
    assert len(receiver.received) == 1


async def test_a_server_that_hangs_is_let_go_of_after_the_time_out(receiver: Receiver) -> None:
    receiver.answers = [None, web.Response()]
    sending = Sending(receiver.webhook(timeout_seconds=0.2))
    try:
        sending.notifier.offer(RUN, (notice(),))
        outcome = await sending.settled.get()
        assert outcome.delivered
        assert len(receiver.received) == 2, "what hung may have arrived: it is sent at least once"
    finally:
        await sending.close()


async def test_one_that_hangs_keeps_no_other_notice_waiting(receiver: Receiver, sending: Sending) -> None:
    receiver.answers = [None, web.Response()]
    sending.notifier.offer(RUN, (notice(1), notice(2)))
    assert (await sending.settled.get()).delivered
    receiver.release.set()
    assert (await sending.settled.get()).delivered


async def test_what_was_offered_is_sent_once_however_often_it_is_offered(receiver: Receiver, sending: Sending) -> None:
    for _ in range(3):
        sending.notifier.offer(RUN, (notice(1), notice(2)))
    first, second = await sending.settled.get(), await sending.settled.get()
    sending.notifier.offer(RUN, (notice(1), notice(2)))
    assert {first.id, second.id} == {notice(1).id, notice(2).id}
    assert {one.id for one in sending.notifier.outcomes(RUN, (notice(1), notice(2)))} == {first.id, second.id}
    assert len(receiver.received) == 2


async def test_what_concerns_all_runs_is_sent_once_and_each_run_hears_what_became_of_it(
    receiver: Receiver, sending: Sending
) -> None:
    trip = notice(kind=NoticeKind.AUTOMATION_HELD, id="breaker-100", shared=True)
    runs = [RunId("lab", name, name) for name in ("a", "b", "c")]
    for run in runs:
        sending.notifier.offer(run, (trip,))
    await sending.settled.get()
    assert all(sending.notifier.outcomes(run, (trip,))[0].delivered for run in runs)
    (body,) = receiver.received
    assert body["text"].startswith("*trimtab*: automation is held for all runs")
    assert body["job"] is None


async def test_a_full_queue_takes_no_more_and_forgets_nothing(receiver: Receiver) -> None:
    webhook = receiver.webhook()
    idle = Notifier(webhook)
    many = tuple(notice(number) for number in range(QUEUE_LENGTH + 5))
    idle.offer(RUN, many)
    work = asyncio.create_task(idle.work())
    try:
        while len(idle.outcomes(RUN, many)) < QUEUE_LENGTH:
            await asyncio.sleep(0.01)
        assert len(receiver.received) == QUEUE_LENGTH
        idle.offer(RUN, many)
        while len(idle.outcomes(RUN, many)) < len(many):
            await asyncio.sleep(0.01)
        assert len({body["id"] for body in receiver.received}) == len(receiver.received) == len(many)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await webhook.close()


async def test_an_operator_that_leads_no_more_says_nothing_and_owes_it_still(receiver: Receiver) -> None:
    leads = False
    sending = Sending(receiver.webhook(), may_send=lambda: leads)
    try:
        sending.notifier.offer(RUN, (notice(),))
        await asyncio.sleep(0)
        while notice_key(RUN, notice()) in sending.notifier._known:
            await asyncio.sleep(0.01)
        assert not receiver.received
        leads = True
        sending.notifier.offer(RUN, (notice(),))
        assert (await sending.settled.get()).delivered
    finally:
        await sending.close()


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("http://127.0.0.1:1/services/{secret}", id="nobody listens"),
        pytest.param("http://name.invalid/services/{secret}", id="no such host"),
        pytest.param("http://[::1/services/{secret}", id="no address"),
        pytest.param("http://hooks..example/services/{secret}", id="a name with an empty part"),
        pytest.param(f"http://{'a' * 64}.example/services/{{secret}}", id="a name with too long a part"),
    ],
)
async def test_no_error_names_the_address(url: str) -> None:
    webhook = HttpWebhook(SecretStr(url.format(secret=SECRET)), timeout_seconds=5)
    try:
        with pytest.raises(OperatorError) as error:
            await webhook.post({"text": "x"})
        assert isinstance(error.value, (WebhookUnavailable, WebhookRefused))
        shown = f"{error.value!r}{error.value.__cause__!r}{json.dumps(str(error.value))}"
        assert SECRET not in shown
        assert error.value.__suppress_context__
    finally:
        await webhook.close()


def test_waits_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier.random, "uniform", lambda _low, high: high)
    assert [wait_seconds(tries) for tries in (1, 2, 3, 8, 20)] == [1, 2, 4, 120, 120]
