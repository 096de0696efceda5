"""Options that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab_cli.output import Format

OutputOption = Annotated[
    Format, typer.Option("--output", "-o", help="How to print the answer.", show_default="text", case_sensitive=False)
]
KubeconfigOption = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Kubeconfig file; else KUBECONFIG, ~/.kube/config, the sandbox's.")
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; else the context's.")]
EveryNamespaceOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of every namespace.")]
AuditEndpointOption = Annotated[
    str | None,
    typer.Option("--audit-endpoint", envvar="TRIMTAB_AUDIT_ENDPOINT", help="Address of the audit bucket's S3 service."),
]
AuditBucketOption = Annotated[
    str | None, typer.Option("--audit-bucket", envvar="TRIMTAB_AUDIT_BUCKET", help="The audit bucket.")
]
CheckpointEndpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-endpoint",
        envvar="TRIMTAB_CHECKPOINT_ENDPOINT",
        help="Address of the checkpoint bucket's S3 service, if this machine has another than the pods.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of a TrainingJob.")]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Name of a TrainingJob, or a run as NAMESPACE/NAME/UID (also of a deleted job)."
    ),
]
LogOption = Annotated[
    list[Path] | None, typer.Option("--log", metavar="FILE", help="A log, whatever its name ends with.")
]
MapOption = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="METRIC=COLUMN", help="Read a metric (or `step`) from this column of the logs."),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", metavar="NAME", help="The logs' format, where it is not recognised.")
]
