"""The Helm chart: what it installs is valid, allows the operator exactly what it does, and refuses bad values."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from control_plane_fixture import ControlPlane, as_documents
from operator_objects import run_request, training_job
from rendered_chart import render, try_render
from trimtab_operator.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
NAMESPACE = "trimtab-system"
HOOK = "helm.sh/hook"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:trimtab"


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> ControlPlane:
    """The chart's objects, with two watched namespaces beside the cluster-wide installation."""
    for name in (NAMESPACE, "team-a"):
        control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    objects = render(namespace=NAMESPACE)
    hooks = [each for each in objects if HOOK in each["metadata"].get("annotations", {})]
    control_plane.apply(*(each for each in objects if each not in hooks))
    control_plane.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
    control_plane.apply(*hooks)
    return control_plane


def test_the_chart_carries_the_librarys_policies_word_for_word() -> None:
    """Mend with: make chart."""
    library = {path.name: path.read_text() for path in (ROOT / "policies" / "library").glob("*.yaml")}
    carried = {path.name: path.read_text() for path in (ROOT / "helm" / "trimtab" / "files" / "policies").iterdir()}
    assert carried == {name: text for name, text in library.items() if not name.endswith(".test.yaml")}


def test_the_policy_that_jobs_get_unless_they_name_another_is_installed(installed: ControlPlane) -> None:
    names = installed.kubectl("get", "clusterguardpolicies", "-o=jsonpath={.items[*].metadata.name}").split()
    namespace = installed.create_namespace("unnamed")
    job = training_job(namespace=namespace)
    job["spec"].pop("guard", None)
    installed.apply(job)
    chosen = installed.kubectl("get", "tj", "-n", namespace, "-o=jsonpath={.items[0].spec.guard.policies[0].name}")
    assert chosen in names


def test_the_api_server_accepts_every_object(installed: ControlPlane) -> None:
    assert "trimtab" in installed.kubectl("get", "deployment", f"-n={NAMESPACE}", "-o=name")


ALLOWED = [
    ("get", "trainingjobs.trimtab.dev"),
    ("list", "trainingjobs.trimtab.dev"),
    ("watch", "guardpolicies.trimtab.dev"),
    ("patch", "trainingjobs.trimtab.dev/status"),
    ("patch", "guardpolicies.trimtab.dev/status"),
    ("watch", "clusterguardpolicies.trimtab.dev"),
    ("patch", "clusterguardpolicies.trimtab.dev/status"),
    ("create", "guardincidents.trimtab.dev"),
    ("patch", "guardincidents.trimtab.dev"),
    ("patch", "guardincidents.trimtab.dev/status"),
    ("watch", "runrequests.trimtab.dev"),
    ("patch", "runrequests.trimtab.dev/status"),
    ("list", "journalanchors.trimtab.dev"),
    ("create", "journalanchors.trimtab.dev"),
    ("patch", "journalanchors.trimtab.dev"),
    ("create", "jobs.batch"),
    ("create", "secrets"),
    ("get", "secrets"),
    ("create", "services"),
    ("create", "configmaps"),
    ("list", "pods"),
    ("delete", "pods"),
    ("create", "events"),
    ("list", "events"),
    ("patch", "events"),
]
FORBIDDEN = [
    ("patch", "trainingjobs.trimtab.dev"),
    ("delete", "trainingjobs.trimtab.dev"),
    ("patch", "guardpolicies.trimtab.dev"),
    ("patch", "clusterguardpolicies.trimtab.dev"),
    ("delete", "guardincidents.trimtab.dev"),
    ("create", "runrequests.trimtab.dev"),
    ("patch", "runrequests.trimtab.dev"),
    ("delete", "journalanchors.trimtab.dev"),
    ("update", "journalanchors.trimtab.dev"),
    ("watch", "journalanchors.trimtab.dev"),
    ("list", "secrets"),
    ("delete", "secrets"),
    ("patch", "jobs.batch"),
    ("delete", "jobs.batch"),
    ("watch", "pods"),
    ("list", "customresourcedefinitions.apiextensions.k8s.io"),
    ("create", "pods"),
    ("create", "pods/exec"),
    ("list", "nodes"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
]


def may(api: ControlPlane, user: str, verb: str, resource: str, namespace: str = "team-a", name: str = "") -> bool:
    kind, _, subresource = resource.partition("/")
    target = f"{kind}/{name}" if name else kind
    options = [f"--subresource={subresource}"] if subresource else []
    done = api.try_kubectl("auth", "can-i", verb, target, f"-n={namespace}", *options, user=user)
    assert done.stdout.strip() in {"yes", "no"}, done.stderr
    return done.stdout.strip() == "yes"


@pytest.mark.parametrize(("verb", "resource"), ALLOWED)
def test_the_operator_may_do_what_it_does(installed: ControlPlane, verb: str, resource: str) -> None:
    assert may(installed, OPERATOR, verb, resource)


@pytest.mark.parametrize(("verb", "resource"), FORBIDDEN)
def test_the_operator_may_do_nothing_else(installed: ControlPlane, verb: str, resource: str) -> None:
    assert not may(installed, OPERATOR, verb, resource)


def test_the_operator_may_change_its_own_lease_and_no_other(installed: ControlPlane) -> None:
    lease = "leases.coordination.k8s.io"
    assert may(installed, OPERATOR, "create", lease, NAMESPACE)
    assert may(installed, OPERATOR, "update", lease, NAMESPACE, "trimtab-operator")
    assert not may(installed, OPERATOR, "update", lease, NAMESPACE, "other")
    assert not may(installed, OPERATOR, "update", lease, "team-a", "trimtab-operator")


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ("engineer", ("create", "trainingjobs.trimtab.dev"), ("patch", "guardpolicies.trimtab.dev")),
        ("engineer", ("create", "runrequests.trimtab.dev"), ("patch", "runrequests.trimtab.dev")),
        ("approver", ("approve", "guardincidents.trimtab.dev"), ("patch", "trainingjobs.trimtab.dev")),
        ("engineer", ("create", "runrequests.trimtab.dev"), ("approve", "guardincidents.trimtab.dev")),
        ("policy-owner", ("patch", "guardpolicies.trimtab.dev"), ("create", "trainingjobs.trimtab.dev")),
        ("reviewer", ("get", "guardincidents.trimtab.dev"), ("patch", "trainingjobs.trimtab.dev")),
        ("reviewer", ("get", "runrequests.trimtab.dev"), ("create", "runrequests.trimtab.dev")),
        ("reviewer", ("get", "journalanchors.trimtab.dev"), ("patch", "journalanchors.trimtab.dev")),
        ("engineer", ("get", "journalanchors.trimtab.dev"), ("delete", "journalanchors.trimtab.dev")),
    ],
)
def test_people_get_the_part_that_is_theirs(
    installed: ControlPlane, role: str, allowed: tuple[str, str], refused: tuple[str, str]
) -> None:
    name = f"{NAMESPACE}-trimtab-{role}"
    installed.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": "team-a"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"a-{role}"}],
        }
    )
    assert may(installed, f"a-{role}", *allowed)
    assert not may(installed, f"a-{role}", *refused)
    for other in ("patch", "delete"):
        assert not may(installed, f"a-{role}", other, "guardincidents.trimtab.dev")


def bind(role: str, users: tuple[str, ...], namespace: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role, "namespace": namespace},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": f"{NAMESPACE}-trimtab-{role}"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name} for name in users],
    }


def test_nobody_asks_in_another_users_name_and_plans_are_answered_by_approvers_alone(installed: ControlPlane) -> None:
    namespace = installed.create_namespace("asking")
    installed.apply(bind("engineer", ("ada", "grace"), namespace), bind("approver", ("vera",), namespace))

    def ask(user: str, by: str, name: str, **spec: Any) -> subprocess.CompletedProcess[str]:
        text = as_documents([run_request(namespace, name, by=by, **spec)])
        return installed.try_kubectl("create", "-f", "-", user=user, text=text)

    # The policy takes a moment to come into force after it was installed.
    for attempt in range(200):
        foreign = ask("grace", "ada", f"foreign-{attempt}")
        if foreign.returncode != 0:
            break
    assert "spec.by must be grace, the user who asks" in foreign.stderr
    assert ask("ada", "ada", "own").returncode == 0
    own = installed.kubectl("get", "rr", "own", f"-n={namespace}", "-o=jsonpath={.spec.by}")
    assert own == "ada"
    approve = {"action": "Approve", "planHash": "0" * 64}
    for action in (approve, {"action": "Reject"}):
        refused = ask("ada", "ada", "plan", **action)
        assert (
            f"ada may not {action['action'].lower()} plans: that takes the verb approve on guardinc" in refused.stderr
        )
    approved = ask("vera", "vera", "plan", **approve)
    assert approved.returncode == 0, approved.stderr


def test_the_check_of_names_can_be_left_to_another_policy() -> None:
    assert of_kind(render(namespace=NAMESPACE), "ValidatingAdmissionPolicy")
    without = render("--set=requestAdmission.create=false", namespace=NAMESPACE)
    assert not [each for each in without if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_named_namespaces_are_the_only_ones_the_operator_reaches() -> None:
    objects = render("--set=watchNamespaces={team-a,team-b}", namespace=NAMESPACE)
    bound = {each["metadata"]["namespace"] for each in of_kind(objects, "RoleBinding")}
    assert bound == {"team-a", "team-b", NAMESPACE}
    clusterwide = of_kind(objects, "ClusterRoleBinding")
    assert [each["roleRef"]["name"] for each in clusterwide] == [f"{NAMESPACE}-trimtab-cluster-policies"]


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (deployment,) = of_kind(objects, "Deployment")
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return only


def test_the_environment_names_every_setting_and_nothing_the_operator_would_ignore() -> None:
    names = {entry["name"] for entry in container(render(namespace=NAMESPACE))["env"]}
    ours = {name.removeprefix(PREFIX).lower() for name in names if name.startswith(PREFIX)}
    assert ours == set(Settings.model_fields)


def test_no_secret_is_written_into_the_objects() -> None:
    objects = render(namespace=NAMESPACE)
    assert of_kind(objects, "Secret") == []
    secret = {"PASSWORD", "USERNAME", "KEY_ID", "ACCESS_KEY"}
    for entry in container(objects)["env"]:
        if any(entry["name"].endswith(ending) for ending in secret):
            assert "secretKeyRef" in entry["valueFrom"]


def test_the_operator_runs_as_nobody_on_a_read_only_root() -> None:
    objects = render(namespace=NAMESPACE)
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    security = container(objects)["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_an_upgrade_ends_no_operator_before_another_stands_by() -> None:
    (deployment,) = of_kind(render("--set=replicas=2", namespace=NAMESPACE), "Deployment")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_definitions_come_with_upgrades_and_stay_after_removal() -> None:
    definitions = of_kind(render(namespace=NAMESPACE), "CustomResourceDefinition")
    kinds = {each["spec"]["names"]["kind"] for each in definitions}
    assert kinds == {
        "TrainingJob",
        "GuardPolicy",
        "ClusterGuardPolicy",
        "GuardIncident",
        "RunRequest",
        "JournalAnchor",
    }
    for each in definitions:
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert of_kind(render("--set=crds.install=false", namespace=NAMESPACE), "CustomResourceDefinition") == []


BAD_VALUES = {
    "three replicas": ("replicas=3", "replicas"),
    "misspelt": ("replica=1", "replica"),
    "no image": ("image=", "image"),
    "password in the address": ("redis.url=redis://user:secret@host:6379", "url"),
    "not a Redis address": ("redis.url=host:6379", "url"),
    "no secret": ("audit.existingSecret=", "existingSecret"),
    "bad bucket": ("audit.bucket=Trim_Tab", "bucket"),
    "bad endpoint": ("audit.endpoint=s3.local", "endpoint"),
    "no lease time": ("leaseSeconds=0", "leaseSeconds"),
    "unknown log level": ("logLevel=loud", "logLevel"),
    "a breaker of one run": ("breaker.minRuns=1", "minRuns"),
    "more than all runs": ("breaker.minShare=1.5", "minShare"),
    "an address in the open": ("webhook.url=https://hooks.example/x", "url"),
}


@pytest.mark.parametrize(("value", "field"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_are_refused_by_field(value: str, field: str) -> None:
    done = try_render(f"--set={value}", namespace=NAMESPACE)
    assert done.returncode != 0
    assert field in done.stderr


def test_slow_imports_are_not_taken_for_a_stalled_event_loop() -> None:
    """The startup probe holds the others off for two minutes; then only a loop that stalls is killed."""
    operator = container(render(namespace=NAMESPACE))
    startup, liveness = operator["startupProbe"], operator["livenessProbe"]
    assert startup["httpGet"] == liveness["httpGet"] == {"path": "/healthz", "port": "health"}
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    assert "initialDelaySeconds" not in liveness
    assert operator["readinessProbe"]["httpGet"]["path"] == "/readyz"
