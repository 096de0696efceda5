"""The sandbox's one error tree. Every message is a sentence that says what is wrong and what to do."""

from __future__ import annotations


class SandboxError(Exception):
    """Root of everything that the sandbox raises on purpose."""


class UnsupportedMachineError(SandboxError):
    """This machine cannot hold a sandbox (not Linux, not root, a port or an address is taken)."""


class MissingToolError(SandboxError):
    """A program is absent and could not be installed."""


class CommandFailedError(SandboxError):
    """A program ended with an error; carries the end of what it said."""


class SandboxHeldError(SandboxError):
    """Another sandbox runs on this machine, and there can be only one."""


class SandboxDownError(SandboxError):
    """The sandbox is not running, and what was asked needs it."""


class NotReadyError(SandboxError):
    """A part did not become ready in time, or ended while it was waited for."""


class UnknownProcessError(SandboxError):
    """No process of the sandbox has that name."""
