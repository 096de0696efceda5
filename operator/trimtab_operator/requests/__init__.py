"""What people ask of a run: answered once each, by one record, and then done like everything else. Pure.

An answer is written before anything is done about it. What an accepted request asks for follows from the fold: the
phase it leads to, the directive that lets a held world run or changes its skip ledger, the end of the run. `legal` says
what may be asked when, `answer` decides, and every action has a module that says why it is refused and what follows.
"""

from trimtab_operator.commands import Command
from trimtab_operator.observation import Observation
from trimtab_operator.requests import skip, stop
from trimtab_operator.requests.answer import next_answer
from trimtab_operator.requests.legal import how_to_answer
from trimtab_operator.requests.resume import go_on
from trimtab_operator.run_state import RunState

__all__ = ["go_on", "how_to_answer", "next_command"]


def next_command(state: RunState, observation: Observation) -> Command | None:
    """Do what was promised, a stop before all else; then answer the oldest request that can be answered now."""
    return stop.carry_out(state, observation) or skip.carry_out(state, observation) or next_answer(state, observation)
