"""What a shell or a test needs in its environment to use a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from trimtab_sandbox import redis_server, s3_server
from trimtab_sandbox.credentials import read_credentials
from trimtab_sandbox.errors import SandboxDownError
from trimtab_sandbox.settings import AUDIT_BUCKET, S3_REGION, TRAINING_BUCKET, Layout, default_home


def environment(home: Path | None = None) -> dict[str, str]:
    """Variables that lead to the sandbox's parts.

    ``AWS_*`` is the S3 administrator, as the person at this machine is; the operator's and the training identity
    have variables of their own.

    Raises:
        SandboxDownError: there is no sandbox in that state directory.
    """
    layout = Layout(home or default_home())
    if not layout.credentials.exists() or not layout.kubeconfig().exists():
        raise SandboxDownError("The sandbox is not up: run `trimtab sandbox up` first.")
    credentials = read_credentials(layout.credentials)
    return {
        "KUBECONFIG": str(layout.kubeconfig()),
        "PATH": f"{layout.commands}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "TRIMTAB_REDIS_URL": redis_server.url(credentials),
        "TRIMTAB_S3_ENDPOINT": s3_server.ENDPOINT,
        "TRIMTAB_AUDIT_BUCKET": AUDIT_BUCKET,
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": credentials.s3_operator.key_id,
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": credentials.s3_operator.secret,
        "TRIMTAB_TRAINING_BUCKET": TRAINING_BUCKET,
        "TRIMTAB_TRAINING_ACCESS_KEY_ID": credentials.s3_training.key_id,
        "TRIMTAB_TRAINING_SECRET_ACCESS_KEY": credentials.s3_training.secret,
        "AWS_ENDPOINT_URL_S3": s3_server.ENDPOINT,
        "AWS_ACCESS_KEY_ID": credentials.s3_admin.key_id,
        "AWS_SECRET_ACCESS_KEY": credentials.s3_admin.secret,
        "AWS_REGION": S3_REGION,
        "AWS_DEFAULT_REGION": S3_REGION,
    }
