from __future__ import annotations

import io
import json
import socket
import stat
import tarfile
import tomllib
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from trimtab_sandbox import containerd, kubelet, manifests, network, redis_server, s3_server
from trimtab_sandbox.build import module_digest
from trimtab_sandbox.certificates import CLIENTS, SUBJECTS, write_pki
from trimtab_sandbox.credentials import Credentials, ensure_credentials, read_credentials
from trimtab_sandbox.environment import environment
from trimtab_sandbox.errors import SandboxDownError, SandboxHeldError, UnsupportedMachineError
from trimtab_sandbox.images import development_image, render_archive
from trimtab_sandbox.kubeconfig import write_kubeconfigs
from trimtab_sandbox.ownership import claim, refuse_second
from trimtab_sandbox.processes import Component, spawn
from trimtab_sandbox.settings import BRIDGE_ADDRESS, Layout, repository_root


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "home")


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return ensure_credentials(tmp_path / "credentials.json")


def _certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_api_servers_certificate_names_every_address_it_is_reached_by(tmp_path: Path) -> None:
    write_pki(tmp_path / "pki")
    certificate = _certificate(tmp_path / "pki" / "apiserver.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {ip_address(BRIDGE_ADDRESS), ip_address("10.96.0.1"), ip_address("127.0.0.1")}
    assert set(names.get_values_for_type(x509.IPAddress)) == addresses
    assert "kubernetes.default.svc.cluster.local" in names.get_values_for_type(x509.DNSName)


def test_every_certificate_is_signed_by_the_authority_and_every_key_is_private(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    write_pki(pki)
    authority = _certificate(pki / "ca.crt")
    for name in SUBJECTS:
        _certificate(pki / f"{name}.crt").verify_directly_issued_by(authority)
    assert {stat.S_IMODE(key.stat().st_mode) for key in pki.glob("*.key")} == {0o600}


def test_pods_use_the_mounted_runtime_unless_they_ask_for_the_plain_one(layout: Layout) -> None:
    rendered = tomllib.loads(containerd.render_configuration(layout, default_runtime=containerd.MOUNTED_RUNTIME))
    engine = rendered["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert engine["default_runtime_name"] == "mounted"
    assert "base_runtime_spec" in engine["runtimes"]["mounted"]
    assert "base_runtime_spec" not in engine["runtimes"]["plain"]


def test_every_development_mount_is_read_only_and_none_is_mounted_twice(tmp_path: Path) -> None:
    mounts = containerd.development_mounts(tmp_path)
    destinations = [mount["destination"] for mount in mounts]
    assert "/usr" in destinations
    assert destinations[-1] == "/opt/trimtab"
    assert len(set(destinations)) == len(destinations)
    assert all("ro" in list(mount["options"]) for mount in mounts)  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_the_base_specification_keeps_the_runtimes_own_mounts() -> None:
    proc = {"destination": "/proc", "type": "proc", "source": "proc"}
    extra: dict[str, object] = {"destination": "/usr", "type": "bind", "source": "/usr"}
    rendered = json.loads(containerd.render_base_specification(json.dumps({"mounts": [proc]}), [extra]))
    assert rendered["mounts"] == [proc, extra]


def test_the_kubelet_listens_on_the_bridge_and_restarts_containers_within_a_second(layout: Layout) -> None:
    configuration = json.loads(kubelet.render_kubelet_configuration(layout))
    assert configuration["address"] == BRIDGE_ADDRESS
    assert configuration["healthzBindAddress"] == "127.0.0.1"
    assert configuration["crashLoopBackOff"] == {"maxContainerRestartPeriod": "1s"}


def test_redis_lets_nobody_in_without_a_name_and_keeps_no_password_in_the_clear(credentials: Credentials) -> None:
    users = redis_server.render_users(credentials)
    assert users.startswith("user default off\n")
    assert credentials.redis_password not in users


def test_the_training_identity_has_actions_on_its_bucket_only(credentials: Credentials) -> None:
    identities = {entry["name"]: entry for entry in json.loads(s3_server.render_identities(credentials))["identities"]}
    assert identities["training"]["actions"]
    assert all(action.endswith(":training") for action in identities["training"]["actions"])
    assert not any(action.startswith("Admin") for action in identities["training"]["actions"])


def test_credentials_are_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    made = ensure_credentials(path)
    assert ensure_credentials(path) == made == read_credentials(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made.redis_password not in repr(made)
    assert made.s3_admin.secret not in repr(made.s3_admin)


def test_the_secret_in_each_namespace_is_the_identity_meant_for_it(credentials: Credentials) -> None:
    secrets = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["stringData"]
        for item in json.loads(json.dumps(manifests.objects(credentials)))
        if item["kind"] == "Secret"
    }
    assert secrets["default", "s3"]["AWS_ACCESS_KEY_ID"] == credentials.s3_training.key_id
    assert secrets["trimtab-system", "trimtab-audit-s3"]["AWS_ACCESS_KEY_ID"] == credentials.s3_operator.key_id
    assert secrets["trimtab-system", "trimtab-redis"]["username"] == "trimtab"


def test_the_development_image_holds_no_program() -> None:
    with tarfile.open(fileobj=io.BytesIO(render_archive(development_image()))) as archive:
        manifest = json.loads(_read(archive, "manifest.json"))[0]
        with tarfile.open(fileobj=io.BytesIO(_read(archive, manifest["Layers"][0]))) as layer:
            files = {member.name for member in layer.getmembers() if member.isfile()}
            links = {member.name: member.linkname for member in layer.getmembers() if member.issym()}
        configuration = json.loads(_read(archive, manifest["Config"]))
    assert manifest["RepoTags"] == ["localhost/trimtab-dev:1"]
    assert files == {"etc/passwd", "etc/group", "etc/nsswitch.conf"}
    assert links["lib64"] == "usr/lib64"
    assert configuration["config"]["User"] == "65532:65532"


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None
    return member.read()


def test_the_environment_of_a_sandbox_that_is_down_is_refused(layout: Layout) -> None:
    with pytest.raises(SandboxDownError, match="sandbox up"):
        environment(layout.home)


def test_the_environment_leads_to_every_part(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    layout.home.mkdir()
    write_pki(layout.pki)
    write_kubeconfigs(layout)
    credentials = ensure_credentials(layout.credentials)
    variables = environment(layout.home)
    assert variables["KUBECONFIG"] == str(layout.home / "admin.kubeconfig")
    assert variables["PATH"] == f"{layout.home}/bin:/usr/bin"
    assert variables["TRIMTAB_REDIS_URL"] == f"redis://trimtab:{credentials.redis_password}@10.244.0.1:6379/0"
    assert variables["AWS_ENDPOINT_URL_S3"] == "http://10.244.0.1:8333"
    assert all(stat.S_IMODE(layout.kubeconfig(client).stat().st_mode) == 0o600 for client in CLIENTS)


def test_a_second_sandbox_is_refused_only_while_the_first_has_a_living_process(tmp_path: Path) -> None:
    first, second, runtime = Layout(tmp_path / "first"), tmp_path / "second", tmp_path / "run"
    runtime.mkdir()
    claim(first.home, runtime)
    first.processes.mkdir(parents=True)
    managed = spawn(
        Component("etcd", ("/bin/sleep", "600")), record=first.processes / "etcd.json", log=first.logs / "e"
    )
    try:
        refuse_second(first.home, runtime)
        with pytest.raises(SandboxHeldError, match=rf"{first.home}.*etcd.*TRIMTAB_SANDBOX_HOME={first.home}.*down"):
            refuse_second(second, runtime)
    finally:
        managed.kill()
    refuse_second(second, runtime)


def test_the_cache_key_follows_the_modules_content(tmp_path: Path) -> None:
    module = repository_root() / "sandbox" / "kube"
    for name in ("dns.go", "go.mod", "go.sum", "main.go", "tools.go"):
        (tmp_path / name).write_bytes((module / name).read_bytes())
    assert module_digest(tmp_path) == module_digest(module)
    (tmp_path / "main.go").write_text("package main\n")
    assert module_digest(tmp_path) != module_digest(module)


def test_every_address_in_use_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
        with pytest.raises(UnsupportedMachineError, match=rf"port {ports[0]} on 127.0.0.1; port {ports[1]} on"):
            network.check_free(("127.0.0.1", port) for port in ports)
