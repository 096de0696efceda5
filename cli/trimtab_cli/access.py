"""From a job's name to its run, its trail and its checkpoints, with whatever rights the person has."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trimtab_contract import keys
from trimtab_contract.anchors import Anchor, anchor_name
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId
from trimtab_operator.errors import InvalidResource
from trimtab_operator.resources import parse_journal_anchor

from trimtab_cli.adapters.object_store import BucketAddress, ObjectStore
from trimtab_cli.cluster_choice import ClusterChoice, KubernetesObject
from trimtab_cli.errors import CliError, NotFound, Unreachable, UsageError
from trimtab_cli.sandbox_link import is_sandbox, sandbox_environment, sandbox_kubeconfig

if TYPE_CHECKING:
    from trimtab_cli.adapters.kubernetes import Kubernetes

OPERATOR_NAMESPACE = "trimtab-system"
_PARALLEL_READS = 8

Bodies = tuple[tuple[int, bytes], ...]
"""Stored journal records, as (sequence number in the key, bytes) in key order."""


def chosen_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> ClusterChoice:
    """The options as given; without any kubeconfig on this machine the sandbox's, if it is up."""
    usual = os.environ.get("KUBECONFIG") or (Path.home() / ".kube" / "config").exists()
    if kubeconfig is None and context is None and not usual:
        kubeconfig = sandbox_kubeconfig()
    return ClusterChoice(kubeconfig, context, namespace)


@dataclass
class Access:
    """Where one command reads from; everything is looked up when it is first needed."""

    choice: ClusterChoice
    audit_endpoint: str | None = None
    audit_bucket: str | None = None
    checkpoint_endpoint: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @cached_property
    def cluster(self) -> "Kubernetes":
        """The API server."""
        # The client library takes seconds to load, and commands that need no cluster should not wait for it.
        from trimtab_cli.adapters.kubernetes import Kubernetes  # noqa: PLC0415

        return Kubernetes(self.choice)

    @cached_property
    def audit(self) -> ObjectStore:
        """The audit bucket: from the environment, else as the operator of the cluster is configured.

        Raises NotFound, NotAllowed, Unreachable with the way out.
        """
        given = self._audit_of_environment()
        return ObjectStore(given if given is not None else self._audit_of_operator())

    def job(self, name: str) -> KubernetesObject:
        """The TrainingJob; raises NotFound."""
        return self.cluster.resource("trainingjobs", name)

    def job_of(self, run: RunId) -> KubernetesObject:
        """The TrainingJob of a run, in whatever namespace; raises NotFound when it is gone or another has its name."""
        found = self.cluster.resource("trainingjobs", run.name, run.namespace)
        if found["metadata"]["uid"] != run.uid:
            raise NotFound(f"The TrainingJob {run.namespace}/{run.name} of now is a newer one than that of {run}.")
        return found

    def anchor_of(self, run: RunId) -> Anchor | None:
        """The run's JournalAnchor; None where there is none. Raises CliError where the cluster cannot be asked."""
        try:
            body = self.cluster.resource("journalanchors", anchor_name(run), run.namespace)
            return parse_journal_anchor(body)[1]
        except NotFound:
            return None
        except InvalidResource as error:
            raise CliError(f"{error}.") from error

    def run(self, job: str) -> RunId:
        """The run of a TrainingJob's name, of a deleted job's name, or of `NAMESPACE/NAME/UID`."""
        try:
            if "/" in job:
                return RunId.parse(job)
            found = self._job_or_none(job)
            if found is not None:
                return RunId(found["metadata"]["namespace"], job, found["metadata"]["uid"])
            return self._deleted_run(job)
        except ContractError as error:
            raise UsageError(f"{job!r} is neither a TrainingJob's name nor NAMESPACE/NAME/UID: {error}.") from error

    def journal(self, run: RunId) -> Bodies:
        """The stored journal; raises NotFound when there is none."""
        sizes = self.audit.sizes(keys.journal_prefix(run))
        if not sizes:
            where = f"bucket {self.audit.address.bucket} at {self.audit.address.endpoint or 'AWS S3'}"
            raise NotFound(f"Run {run} has no journal in {where}.")
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            bodies = tuple(pool.map(self.audit.get, sizes))
        return tuple(zip(map(_seq, sizes), bodies, strict=True))

    def checkpoints(self, job: KubernetesObject) -> tuple[ObjectStore, str]:
        """The checkpoint bucket of a TrainingJob, and the root of its runs in it."""
        storage: Mapping[str, Any] = job["spec"]["checkpoint"]
        location = urlsplit(str(storage["uri"]))
        endpoint = self.checkpoint_endpoint or str(storage.get("endpoint", ""))
        if not self.checkpoint_endpoint:
            endpoint = self._reachable(endpoint, "--checkpoint-endpoint")
        access, secret = self.environment.get("AWS_ACCESS_KEY_ID"), self.environment.get("AWS_SECRET_ACCESS_KEY")
        if not (access and secret):
            data = self.cluster.secret(job["metadata"]["namespace"], storage["credentialsSecretRef"]["name"])
            access, secret = data.get("AWS_ACCESS_KEY_ID", ""), data.get("AWS_SECRET_ACCESS_KEY", "")
        return ObjectStore(BucketAddress(location.netloc, endpoint, access, secret)), location.path.strip("/")

    def _job_or_none(self, name: str) -> KubernetesObject | None:
        """The TrainingJob, or None when it is gone or no cluster is there to be asked."""
        try:
            return self.job(name)
        except (NotFound, Unreachable):
            return None

    def _deleted_run(self, job: str) -> RunId:
        try:
            namespace = self.choice.namespace or self.cluster.namespace
        except NotFound:
            namespace = "default"
        uids = self.audit.folders(f"journal/{namespace}/{job}/")
        if not uids:
            raise NotFound(f"There is no TrainingJob {job} in namespace {namespace}, and no journal of one.")
        if len(uids) > 1:
            runs = ", ".join(f"{namespace}/{job}/{uid}" for uid in uids)
            raise UsageError(f"Several deleted jobs were called {job}; name one of the runs: {runs}.")
        return RunId(namespace, job, next(iter(uids)))

    def _audit_of_environment(self) -> BucketAddress | None:
        access = self.environment.get("TRIMTAB_AUDIT_ACCESS_KEY_ID")
        secret = self.environment.get("TRIMTAB_AUDIT_SECRET_ACCESS_KEY")
        if not (access and secret):
            return None
        if not self.audit_bucket:
            raise UsageError("TRIMTAB_AUDIT_ACCESS_KEY_ID is set, but not the bucket: give --audit-bucket.")
        endpoint = self.audit_endpoint or self.environment.get("TRIMTAB_S3_ENDPOINT", "")
        return BucketAddress(self.audit_bucket, endpoint, access, secret)

    def _audit_of_operator(self) -> BucketAddress:
        path = f"/apis/apps/v1/namespaces/{OPERATOR_NAMESPACE}/deployments"
        found = self.cluster.get(path, labelSelector="app.kubernetes.io/name=trimtab")["items"]
        if not found:
            raise NotFound(
                f"No operator is installed in namespace {OPERATOR_NAMESPACE}: install the chart, or set "
                "TRIMTAB_AUDIT_BUCKET, TRIMTAB_AUDIT_ACCESS_KEY_ID and TRIMTAB_AUDIT_SECRET_ACCESS_KEY."
            )
        rows: list[Mapping[str, Any]] = found[0]["spec"]["template"]["spec"]["containers"][0]["env"]
        value = _variables(rows, lambda name: self.cluster.secret(OPERATOR_NAMESPACE, name))
        endpoint = self.audit_endpoint or self._reachable(value("TRIMTAB_AUDIT_ENDPOINT"), "--audit-endpoint")
        return BucketAddress(
            self.audit_bucket or value("TRIMTAB_AUDIT_BUCKET"),
            endpoint,
            value("TRIMTAB_AUDIT_ACCESS_KEY_ID"),
            value("TRIMTAB_AUDIT_SECRET_ACCESS_KEY"),
        )

    def _reachable(self, endpoint: str, option: str) -> str:
        """An endpoint as this machine reaches it: names inside the cluster resolve only in pods."""
        host = urlsplit(endpoint).hostname or ""
        if not host.endswith((".svc", ".cluster.local")):
            return endpoint
        if is_sandbox(self.cluster.server):
            return sandbox_environment().get("TRIMTAB_S3_ENDPOINT", endpoint)
        raise CliError(f"{endpoint} is an address inside the cluster: forward a port to it and give {option}.")


def _variables(rows: list[Mapping[str, Any]], secret: Callable[[str], Mapping[str, str]]) -> Callable[[str], str]:
    """A container's environment, with the Secrets it refers to."""
    by_name = {row["name"]: row for row in rows}

    def value(name: str) -> str:
        row = by_name.get(name, {})
        reference = row.get("valueFrom", {}).get("secretKeyRef")
        if reference is None:
            return str(row.get("value", ""))
        data = secret(reference["name"])
        if reference["key"] not in data:
            raise NotFound(f"The operator's Secret {reference['name']} has no {reference['key']}.")
        return data[reference["key"]]

    return value


def _seq(key: str) -> int:
    try:
        return keys.journal_seq(key)
    except ContractError as error:
        raise CliError(f"A foreign object lies among the journal's records: {key}.") from error
