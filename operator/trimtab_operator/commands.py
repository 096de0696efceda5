"""What remediation asks for: a journal record, or an effect whose intent is already in the journal. Frozen values."""

from dataclasses import dataclass
from typing import Any

from trimtab_contract.journal import Evidence, Phase

from trimtab_operator.run_state import JournalAction, PendingEffect

DECISION_VERSION = 2
"""Rises with every change of code that decides otherwise of the same records and observations; each Takeover names it.

The recorded incidents in `tests/recorded/` are decided again by every version, and hold what it decides otherwise.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A journal record without its place in the chain, its time and its actor.

    A draft with phase Intent announces an effect; one without phase is a fact or a decision.
    """

    action: JournalAction
    phase: Phase | None = None
    id: str = ""
    incident: str | None = None
    on_behalf_of: str | None = None
    reason: dict[str, Any] | None = None
    evidence: tuple[Evidence, ...] = ()
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    policy_hash: str | None = None
    outcome: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Write the draft to the journal, then decide again."""

    draft: Draft


@dataclass(frozen=True, slots=True)
class Perform:
    """Carry out the effect of an intent, then write its result."""

    effect: PendingEffect


Command = Append | Perform
