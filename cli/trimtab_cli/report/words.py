"""Times, numbers, skips and wishes as people read them. Pure."""

from collections.abc import Iterator
from datetime import datetime

from trimtab_contract.directives import LearningRateOverride
from trimtab_operator.incidents import Incident, Wishes

OPEN = "open"


def outcome_of(incident: Incident) -> str:
    """How the incident ended, in one word."""
    return incident.outcome or OPEN


def plain_number(value: float | str | None) -> str:
    """A number as the journal has it, in which one that is not finite is a text."""
    return "" if value is None else value if isinstance(value, str) else f"{value:.6g}"


def moment(time: str) -> str:
    """A timestamp to the second, without the letter in its middle."""
    return f"{time[:19].replace('T', ' ')} UTC" if time else ""


def since(start: str, time: str) -> str:
    """How long after `start` a timestamp is, such as `+12.4 s` or `-3 min`; empty where one of them is none."""
    seconds = seconds_between(start, time)
    return "" if seconds is None else f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


def seconds_between(start: str, time: str) -> float | None:
    """Seconds from one timestamp to another; None where one of them is none."""
    try:
        return (datetime.fromisoformat(time) - datetime.fromisoformat(start)).total_seconds()
    except (TypeError, ValueError):
        return None


def duration(seconds: float) -> str:
    """A length of time with the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def rate_words(rate: LearningRateOverride | None) -> str:
    """A lower learning rate in words; empty where it is as scheduled."""
    return f"scaled by {rate.scale:g} up to step {rate.until_step}" if rate else ""


def wish_words(wishes: Wishes) -> str:
    """What a person wants of a rollback; empty where it is nothing beyond the usual."""
    return "; ".join(_wished(wishes))


def _wished(wishes: Wishes) -> Iterator[str]:
    if wishes.step is not None:
        yield f"back to step {wishes.step}"
    elif wishes.key:
        yield f"back to {wishes.key}"
    if wishes.skip is not None:
        yield f"skip windows {wishes.skip[0]} to {wishes.skip[1]}"
    if wishes.learning_rate is not None:
        rate = wishes.learning_rate
        yield f"the learning rate scaled by {rate.scale:g} for {rate.until_step} steps"
    if wishes.unchanged:
        yield "train the same steps again, unchanged"
