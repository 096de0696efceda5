"""The operator's environment."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from trimtab_operator.breaker import BreakerSettings
from trimtab_operator.errors import InvalidSettings
from trimtab_operator.settings import load_settings
from trimtab_operator.workload import WorkloadDefaults

GOOD = {
    "TRIMTAB_REDIS_URL": "redis://redis.trimtab-system:6379",
    "TRIMTAB_REDIS_PASSWORD": "hunter2",
    "TRIMTAB_AUDIT_BUCKET": "trimtab-audit",
    "TRIMTAB_AUDIT_ENDPOINT": "http://s3:8333",
    "TRIMTAB_AUDIT_ACCESS_KEY_ID": "key",
    "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": "hunter3",
    "TRIMTAB_NAMESPACE": "trimtab-system",
    "TRIMTAB_POD_NAME": "trimtab-0",
    "TRIMTAB_POD_UID": "1234",
    "TRIMTAB_IMAGE": "example/operator:1",
    "TRIMTAB_TRAINER_IMAGE": "example/trainer:1",
}


def test_the_charts_variables_are_read() -> None:
    settings = load_settings({**GOOD, "TRIMTAB_WATCH_NAMESPACES": "a, b", "TRIMTAB_RESYNC_SECONDS": "5"})
    assert settings.watch_namespaces == ("a", "b")
    assert settings.resync_seconds == 5
    assert settings.redis_password.get_secret_value() == "hunter2"
    assert settings.workload == WorkloadDefaults("example/trainer:1", "redis://redis.trimtab-system:6379")


def test_the_process_environment_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRIMTAB_WATCH_NAMESPACES", "a,b")
    given = load_settings({**GOOD, "TRIMTAB_WATCH_NAMESPACES": "a,b"})
    assert load_settings().model_dump() == given.model_dump()
    monkeypatch.delenv("TRIMTAB_AUDIT_BUCKET")
    with pytest.raises(InvalidSettings, match="TRIMTAB_AUDIT_BUCKET is not set"):
        load_settings()


def test_empty_means_absent_where_a_default_exists() -> None:
    settings = load_settings({**GOOD, "TRIMTAB_AUDIT_ENDPOINT": "", "TRIMTAB_WATCH_NAMESPACES": ""})
    assert settings.audit_endpoint is None
    assert settings.watch_namespaces == ()


def test_pods_may_reach_redis_elsewhere() -> None:
    settings = load_settings({**GOOD, "TRIMTAB_TRAINER_REDIS_URL": "redis://other:6379"})
    assert settings.workload.redis_url == "redis://other:6379"


def test_every_wrong_variable_is_named_at_once_and_no_value_is_shown() -> None:
    bad = {**GOOD, "TRIMTAB_REDIS_URL": "redis://user:hunter2@host", "TRIMTAB_LEASE_SECONDS": "0"}
    del bad["TRIMTAB_POD_UID"]
    bad["TRIMTAB_AUDIT_SECRET_ACCESS_KEY"] = ""
    with pytest.raises(InvalidSettings) as caught:
        load_settings(bad)
    text = str(caught.value)
    for name in ("REDIS_URL", "LEASE_SECONDS", "POD_UID is not set", "AUDIT_SECRET_ACCESS_KEY"):
        assert f"TRIMTAB_{name}" in text
    assert "hunter2" not in text


def test_anchors_are_signed_by_an_ed25519_key_or_not_at_all() -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    signer = load_settings({**GOOD, "TRIMTAB_ANCHOR_SIGNING_KEY": pem}).signer
    assert signer is not None
    assert signer.pem == key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    assert load_settings({**GOOD, "TRIMTAB_ANCHOR_SIGNING_KEY": ""}).signer is None
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for wrong, says in (("hunter2", "unencrypted private key in PEM"), (other.decode(), "but none of Ed25519")):
        with pytest.raises(InvalidSettings, match=says) as caught:
            load_settings({**GOOD, "TRIMTAB_ANCHOR_SIGNING_KEY": wrong, "TRIMTAB_LEASE_SECONDS": "0"})
        assert "TRIMTAB_ANCHOR_SIGNING_KEY" in str(caught.value)
        assert "TRIMTAB_LEASE_SECONDS" in str(caught.value)
        assert wrong not in str(caught.value)


def test_secrets_do_not_show_in_the_settings_text() -> None:
    text = repr(load_settings(GOOD))
    assert "hunter2" not in text
    assert "hunter3" not in text


def test_values_of_secrets_that_were_made_from_files_are_taken_without_their_line_breaks() -> None:
    secrets = {
        "TRIMTAB_REDIS_USERNAME": "admin",
        "TRIMTAB_REDIS_PASSWORD": " hunter2 ",
        "TRIMTAB_AUDIT_ACCESS_KEY_ID": "key",
        "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": "hunter3",
        "TRIMTAB_WEBHOOK_URL": "https://hooks.example/T0/s3cr3t",
    }
    for end in ("\n", "\r\n"):
        from_files = load_settings({**GOOD, **{name: f"{value}{end}" for name, value in secrets.items()}})
        assert from_files.model_dump() == load_settings({**GOOD, **secrets}).model_dump()
    assert load_settings({**GOOD, "TRIMTAB_WEBHOOK_URL": "\n"}).webhook_url is None
    with pytest.raises(InvalidSettings, match="TRIMTAB_AUDIT_SECRET_ACCESS_KEY"):
        load_settings({**GOOD, "TRIMTAB_AUDIT_SECRET_ACCESS_KEY": "\n"})


def test_the_webhooks_address_is_optional_and_never_shown() -> None:
    assert load_settings({**GOOD, "TRIMTAB_WEBHOOK_URL": ""}).webhook_url is None
    settings = load_settings({**GOOD, "TRIMTAB_WEBHOOK_URL": "https://hooks.example/T0/s3cr3t"})
    assert settings.webhook_url is not None
    assert settings.webhook_url.get_secret_value() == "https://hooks.example/T0/s3cr3t"
    assert "s3cr3t" not in repr(settings)


@pytest.mark.parametrize(
    "url", ["ftp://hooks.example/s3cr3t", "file:///etc/s3cr3t", "https://user:s3cr3t@hooks.example/", "s3cr3t"]
)
def test_a_webhook_that_is_no_http_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"TRIMTAB_WEBHOOK_URL: .*http") as caught:
        load_settings({**GOOD, "TRIMTAB_WEBHOOK_URL": url})
    assert "s3cr3t" not in str(caught.value)


def test_the_breakers_settings_have_defaults_and_bounds() -> None:
    assert load_settings(GOOD).breaker == BreakerSettings()
    bad = {"MIN_RUNS": "1", "MIN_SHARE": "0", "WINDOW_SECONDS": "5", "QUIET_SECONDS": "100000"}
    with pytest.raises(InvalidSettings) as caught:
        load_settings({**GOOD, **{f"TRIMTAB_BREAKER_{name}": value for name, value in bad.items()}})
    for name in bad:
        assert f"TRIMTAB_BREAKER_{name}" in str(caught.value)


def test_a_quiet_time_shorter_than_the_window_is_refused() -> None:
    with pytest.raises(InvalidSettings, match=r"QUIET_SECONDS: .*WINDOW_SECONDS, which is 300"):
        load_settings({**GOOD, "TRIMTAB_BREAKER_QUIET_SECONDS": "60"})
