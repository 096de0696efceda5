"""``python -m trimtab_sandbox up|down|status|env``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys

from trimtab_sandbox.cluster import down, status, up
from trimtab_sandbox.environment import environment
from trimtab_sandbox.errors import SandboxError
from trimtab_sandbox.settings import Options


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trimtab_sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="bring the sandbox up")
    start.add_argument("--plain", action="store_true", help="pods see only their own image, unless they ask otherwise")
    stop = commands.add_parser("down", help="end everything that up started")
    stop.add_argument("--keep-data", action="store_true", help="leave Redis's and S3's data for the next up")
    commands.add_parser("status", help="say how the sandbox is (exit code 0 up, 1 not)")
    commands.add_parser("env", help="print shell commands that lead to the sandbox's parts")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            info = up(Options(mounted=not options.plain), _report)
            print(f"export KUBECONFIG={info.kubeconfig}")
        case "down":
            down(progress=_report, keep_data=options.keep_data)
        case "env":
            for name, value in environment().items():
                print(f"export {name}={shlex.quote(value)}")
        case _:
            state = status()
            print(json.dumps(dataclasses.asdict(state), indent=1, default=str))
            return 0 if state.running else 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 yes, 1 the answer is no or it failed, 2 usage."""
    try:
        return _run(_parse(arguments))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
