"""Installing the operator's chart with helm."""

from collections.abc import Mapping
from pathlib import Path

from trimtab_cli.access import OPERATOR_NAMESPACE
from trimtab_cli.adapters.programs import run_program
from trimtab_cli.cluster_choice import ClusterChoice
from trimtab_cli.output import Output
from trimtab_cli.sandbox_link import repository

RELEASE = "trimtab"
SANDBOX_VALUES = Path("examples/demo/operator-values.yaml")
"""In the repository: how the chart is installed in the sandbox."""

_WAIT_SECONDS = 180


def install_chart(
    output: Output,
    choice: ClusterChoice,
    *,
    values: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Install or upgrade the operator and wait until it is ready; raises ProgramFailed."""
    arguments = ["helm", "upgrade", "--install", RELEASE, str(repository() / "helm" / "trimtab")]
    arguments += [f"--namespace={OPERATOR_NAMESPACE}", "--create-namespace", "--wait", f"--timeout={_WAIT_SECONDS}s"]
    if choice.kubeconfig is not None:
        arguments.append(f"--kubeconfig={choice.kubeconfig}")
    if choice.context is not None:
        arguments.append(f"--kube-context={choice.context}")
    if values is not None:
        arguments.append(f"--values={values}")
    with output.busy("installing the operator"):
        run_program(arguments, environment=environment, seconds=_WAIT_SECONDS + 30)
