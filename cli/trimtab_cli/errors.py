"""Errors of the command line. Every message is a sentence that says what is wrong and what to do.

CliError            exit code 1
├── UsageError          the command was typed wrongly (exit code 2)
├── NotFound            an object, a run or a file does not exist
├── NotAllowed          the credentials do not reach what was asked for
├── Unreachable         the cluster or the object store does not answer
├── MalformedTrail      a journal that cannot be folded
└── ProgramFailed       a program that was started (kubectl, helm, the sandbox's) failed
"""


class CliError(Exception):
    """Root of everything that ends a command with one sentence."""

    exit_code = 1


class UsageError(CliError):
    """The command was typed wrongly."""

    exit_code = 2


class NotFound(CliError):
    """What was named does not exist."""


class NotAllowed(CliError):
    """The credentials do not reach what was asked for."""


class Unreachable(CliError):
    """The other side does not answer."""


class MalformedTrail(CliError):
    """A journal record that no operator of this version writes."""


class ProgramFailed(CliError):
    """A program ended with an error."""
