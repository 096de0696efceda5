"""The policies of several files, or every error in them."""

from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from trimtab_policies.policy import AcceptedPolicy

from trimtab_cli.errors import CliError
from trimtab_cli.policy_files import PolicyFinding, read_policies
from trimtab_cli.text_files import read_text

POLICY_SUFFIXES = frozenset({".yaml", ".yml"})


def load_policies(files: Iterable[Path]) -> tuple[AcceptedPolicy, ...]:
    """Every policy of every file, in order; raises CliError with every error of all files, one a line."""
    return _policies((str(file), read_text(file)) for file in files)


def shipped_default() -> tuple[AcceptedPolicy, ...]:
    """The policy that a job gets which names none, as it ships with this package."""
    name = "default.yaml"
    text = resources.files("trimtab_cli").joinpath("policies", name).read_text(encoding="utf-8")
    return _policies([(name, text)])


def _policies(texts: Iterable[tuple[str, str | PolicyFinding]]) -> tuple[AcceptedPolicy, ...]:
    policies: list[AcceptedPolicy] = []
    problems: list[str] = []
    for name, text in texts:
        found, findings = read_policies(name, text)
        policies += found
        problems += map(str, findings)
    if problems:
        raise CliError("\n".join(problems))
    return tuple(policies)
