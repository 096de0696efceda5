"""The policies of several files, or every error in them."""

from collections.abc import Iterable
from pathlib import Path

from trimtab_policies.policy import AcceptedPolicy

from trimtab_cli.errors import CliError
from trimtab_cli.policy_files import read_policies
from trimtab_cli.text_files import read_text

POLICY_SUFFIXES = frozenset({".yaml", ".yml"})


def load_policies(files: Iterable[Path]) -> tuple[AcceptedPolicy, ...]:
    """Every policy of every file, in order; raises CliError with every error of all files, one a line."""
    policies: list[AcceptedPolicy] = []
    problems: list[str] = []
    for file in files:
        found, findings = read_policies(str(file), read_text(file))
        policies += found
        problems += map(str, findings)
    if problems:
        raise CliError("\n".join(problems))
    return tuple(policies)
