"""The operator's settings, from the environment variables that the chart sets."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from trimtab_operator.breaker import BreakerSettings
from trimtab_operator.errors import InvalidSettings
from trimtab_operator.oversight import READ_BACKS_AT_ONCE
from trimtab_operator.signatures import AnchorSigner
from trimtab_operator.workload import WorkloadDefaults

PREFIX = "TRIMTAB_"

_Filled = Annotated[str, Field(min_length=1)]


class Settings(BaseSettings):
    """Every field is the environment variable `TRIMTAB_<FIELD>`; secrets never appear in its text."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    redis_url: Annotated[str, Field(pattern=r"^rediss?://[^/@\s]+(/[0-9]+)?$")]
    """`redis://host:port`; user and password come separately, so that this can be shown to anybody."""
    redis_username: _Filled = "default"
    redis_password: SecretStr
    trainer_redis_url: Annotated[str, Field(pattern=r"^rediss?://[^/@\s]+(/[0-9]+)?$")] | None = None
    """Where pods find Redis, if elsewhere than the operator does."""
    audit_bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    audit_endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    audit_access_key_id: _Filled
    audit_secret_access_key: SecretStr
    anchor_signing_key: SecretStr | None = None
    """An Ed25519 private key in PEM that signs every JournalAnchor; empty: they are not signed."""
    namespace: _Filled
    pod_name: _Filled
    pod_uid: _Filled
    service_account: _Filled = "trimtab"
    image: _Filled
    """The operator's own image, by digest where it is known: journal records name it."""
    trainer_image: _Filled
    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Comma-separated; empty means all."""
    lease_name: _Filled = "trimtab-operator"
    lease_seconds: Annotated[int, Field(ge=5, le=300)] = 15
    resync_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    read_back_jobs: bool = True
    """Whether checkpoints that no other host of a run can read back are read by a Job."""
    read_back_jobs_at_once: Annotated[int, Field(ge=1, le=1000)] = READ_BACKS_AT_ONCE
    """So many such Jobs at once, over all runs."""
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8080
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    webhook_url: SecretStr | None = None
    """Where people are told; whoever knows it may post there."""
    breaker_enabled: bool = True
    breaker_min_runs: Annotated[int, Field(ge=2, le=10_000)] = 3
    breaker_min_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    breaker_window_seconds: Annotated[int, Field(ge=10, le=86_400)] = 300
    breaker_quiet_seconds: Annotated[int, Field(ge=10, le=86_400)] = 900

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value

    @field_validator(
        "redis_username",
        "redis_password",
        "audit_access_key_id",
        "audit_secret_access_key",
        "webhook_url",
        mode="before",
    )
    @classmethod
    def _without_line_end(cls, value: Any) -> Any:
        """A Secret that was made from a file ends with a line break, which is no part of what it holds."""
        return value.rstrip("\r\n") if isinstance(value, str) else value

    @field_validator("trainer_redis_url", "audit_endpoint", mode="before")
    @classmethod
    def _absent_when_empty(cls, value: Any) -> Any:
        return value or None

    @field_validator("anchor_signing_key")
    @classmethod
    def _signing_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value().strip():
            return None
        AnchorSigner.of_pem(value.get_secret_value().encode())
        return value

    @field_validator("redis_password", "audit_secret_access_key")
    @classmethod
    def _filled(cls, value: SecretStr) -> SecretStr:
        if not value.get_secret_value():
            message = "must not be empty"
            raise ValueError(message)
        return value

    @field_validator("webhook_url")
    @classmethod
    def _address(cls, value: SecretStr | None) -> SecretStr | None:
        """Absent when empty; nothing of it is repeated in an error."""
        text = value.get_secret_value() if value is not None else ""
        if text and not re.fullmatch(r"https?://[^/@\s]+(/\S*)?", text):
            message = "must be an http:// or https:// address without user or password"
            raise ValueError(message)
        return value if text else None

    @field_validator("breaker_quiet_seconds")
    @classmethod
    def _no_shorter_than_the_window(cls, value: int, info: ValidationInfo) -> int:
        window = int(info.data.get("breaker_window_seconds", 0))
        if value < window:
            message = f"must be at least TRIMTAB_BREAKER_WINDOW_SECONDS, which is {window}"
            raise ValueError(message)
        return value

    @property
    def breaker(self) -> BreakerSettings:
        """When many failing runs are the platform's failure."""
        return BreakerSettings(
            enabled=self.breaker_enabled,
            min_runs=self.breaker_min_runs,
            min_share=self.breaker_min_share,
            window_seconds=float(self.breaker_window_seconds),
            quiet_seconds=float(self.breaker_quiet_seconds),
        )

    @property
    def signer(self) -> AnchorSigner | None:
        """What signs anchors, if anything does."""
        key = self.anchor_signing_key
        return AnchorSigner.of_pem(key.get_secret_value().encode()) if key is not None else None

    @property
    def workload(self) -> WorkloadDefaults:
        """What every world gets from the operator."""
        return WorkloadDefaults(self.trainer_image, self.trainer_redis_url or self.redis_url)


class _GivenSettings(Settings):
    """Settings from given values alone, so that a test does not depend on its environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings, from the process's environment by default.

    Raises:
        InvalidSettings: one sentence per wrong variable, all at once, without any value.
    """
    try:
        if environment is None:
            return Settings()  # pyright: ignore[reportCallIssue] - the fields come from the environment
        given = {
            name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)
        }
        return _GivenSettings(**given)  # pyright: ignore[reportArgumentType] - checked by the model
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise InvalidSettings(
            " ".join(_sentence(detail["loc"], detail["type"], detail["msg"]) for detail in details)
        ) from None


def _sentence(location: tuple[int | str, ...], kind: str, message: str) -> str:
    variable = PREFIX + str(location[0]).upper().removeprefix(PREFIX)
    if kind == "missing":
        return f"{variable} is not set: set it in the operator's environment."
    return f"{variable}: {message[:1].lower()}{message[1:]}."
