"""How often a log hears that a service is away."""

from trimtab_trainer.outage import REMIND_SECONDS, Outage


class Away(Exception):
    """What the adapter raises."""


def away(cause: Exception) -> Away:
    error = Away(str(cause))
    error.__cause__ = cause
    return error


def test_a_reason_is_said_at_once_and_again_when_the_reminder_is_due_with_the_time_since_the_beginning() -> None:
    now = [100.0]
    outage = Outage(lambda: now[0])
    assert outage.failed(away(OSError())) == 0.0
    now[0] += REMIND_SECONDS / 2
    assert outage.failed(away(OSError())) is None
    now[0] += REMIND_SECONDS / 2
    assert outage.failed(away(OSError())) == REMIND_SECONDS


def test_another_reason_is_said_at_once_and_two_that_alternate_are_not_said_more_often() -> None:
    outage = Outage(lambda: 100.0)
    said = [outage.failed(away(kind(str(turn)))) for turn in range(3) for kind in (TimeoutError, PermissionError)]
    assert said == [0.0, 0.0, None, None, None, None]


def test_only_the_end_of_an_outage_that_was_spoken_of_is_said() -> None:
    now = [100.0]
    outage = Outage(lambda: now[0])
    assert not outage.ended()
    outage.failed(away(OSError()))
    assert outage.ongoing
    assert outage.ended()
    assert not outage.ongoing

    # A service that comes and goes several times a second is not said to be away each time.
    assert outage.failed(away(OSError())) is None
    assert outage.ongoing
    assert not outage.ended()
    now[0] += REMIND_SECONDS
    assert outage.failed(away(OSError())) == 0.0
