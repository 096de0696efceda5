"""`trimtab policy test`: unit tests of guard policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from trimtab_policies.policytest import CaseResult, Failure, run_case

from trimtab_cli.errors import CliError
from trimtab_cli.junit import JUnitCase, JUnitSuite, junit_xml
from trimtab_cli.options import OutputOption
from trimtab_cli.output import Format, Output
from trimtab_cli.policy_test_files import TestSuite, find_test_files, read_test_file


@dataclass(frozen=True, slots=True)
class _Outcome:
    suite: TestSuite
    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        return not self.suite.findings and all(result.passed for result in self.results)


def run_tests(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIRECTORY…", help="Test files (NAME.test.yaml), or directories that hold some."),
    ],
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write the results as JUnit XML.")] = None,
    form: OutputOption = Format.TEXT,
) -> None:
    """Judge made-up records by the engine of the operator; exit code 1 when a case fails or a file has an error."""
    output = Output(form)
    files = find_test_files(paths)
    outcomes = [_run(file) for file in output.each(files, "Testing")]
    if junit is not None:
        _write_junit(junit, outcomes)
    passed = all(outcome.passed for outcome in outcomes)
    output.result(
        {"passed": passed, "files": [_plain(outcome) for outcome in outcomes]}, lambda: _show(output, outcomes)
    )
    raise typer.Exit(0 if passed else 1)


def _run(file: Path) -> _Outcome:
    suite = read_test_file(file)
    return _Outcome(suite, tuple(run_case(case, suite.policies) for case in suite.cases))


def _show(output: Output, outcomes: Sequence[_Outcome]) -> None:
    for outcome in outcomes:
        output.line(_title(outcome.suite), "bold")
        for finding in outcome.suite.findings:
            output.line(f"  {finding}", "red")
        for result in outcome.results:
            output.line(f"  {'PASS' if result.passed else 'FAIL'}  {result.name}", "green" if result.passed else "red")
            for failure in result.failures:
                _show_failure(output, outcome.suite, failure)
    results = [result for outcome in outcomes for result in outcome.results]
    failed = sum(not result.passed for result in results)
    broken = sum(bool(outcome.suite.findings) for outcome in outcomes)
    summary = f"{_count(len(results), 'case')} in {_count(len(outcomes), 'file')}: {len(results) - failed} passed"
    summary += f", {failed} failed" if failed else ""
    summary += f"; {_count(broken, 'file')} could not be run" if broken else ""
    output.line(summary, "bold red" if failed or broken else "bold green")


def _show_failure(output: Output, suite: TestSuite, failure: Failure) -> None:
    output.line(f"        {suite.file}:{suite.line(failure.path)}: {failure.path}")
    for line in _told(failure):
        output.line(f"          {line}")


def _told(failure: Failure) -> list[str]:
    lines = [f"expected  {failure.expected}"] if failure.expected else []
    lines.append(f"came      {failure.found}")
    return [*lines, f"because   {failure.sentence}"] if failure.sentence else lines


def _title(suite: TestSuite) -> str:
    names = ", ".join(policy.name for policy in suite.policies)
    return f"{suite.file} ({names})" if names else str(suite.file)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(outcome: _Outcome) -> dict[str, Any]:
    suite = outcome.suite
    return {
        "file": str(suite.file),
        "policies": [policy.name for policy in suite.policies],
        "errors": suite.findings,
        "cases": [
            {
                "name": result.name,
                "line": suite.line(result.path),
                "passed": result.passed,
                "decisions": result.decisions,
                "failures": [
                    {
                        "line": suite.line(failure.path),
                        "path": failure.path,
                        "expected": failure.expected,
                        "found": failure.found,
                        "sentence": failure.sentence,
                    }
                    for failure in result.failures
                ],
            }
            for result in outcome.results
        ],
    }


def _write_junit(file: Path, outcomes: Sequence[_Outcome]) -> None:
    try:
        file.write_bytes(junit_xml(_junit(outcome) for outcome in outcomes))
    except OSError as error:
        message = f"{file} cannot be written: {error.strerror or error}."
        raise CliError(message) from error


def _junit(outcome: _Outcome) -> JUnitSuite:
    suite = outcome.suite
    cases = [
        JUnitCase(
            name=result.name,
            line=suite.line(result.path),
            failure="\n\n".join(
                "\n".join((f"{suite.file}:{suite.line(failure.path)}: {failure.path}", *_told(failure)))
                for failure in result.failures
            ),
        )
        for result in outcome.results
    ]
    if suite.findings:
        text = "\n".join(str(finding) for finding in suite.findings)
        cases.append(JUnitCase(name="the file can be read", line=suite.findings[0].line, error=text))
    return JUnitSuite(str(suite.file), tuple(cases))
