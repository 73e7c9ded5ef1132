"""Settings of every part, from a TOML file, the environment and flags, each stronger than the last.

The file is ``evertick.toml`` here or in ``/etc/evertick``, or what ``--config`` or ``EVERTICK_CONFIG``
names. In the environment ``EVERTICK_KAFKA__BOOTSTRAP`` is ``kafka.bootstrap`` in the file and
``--set kafka.bootstrap=…`` on the command line. A name that nobody knows is an error, not ignored.

Sections that belong to a registry (``collectors.link``, ``detectors.link.down``, ``remedies.notify``)
are plain tables here and are checked by their owner with :func:`section`, so that a new collector
brings its own settings without a change in this file.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from platformdirs import user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError as SourceError

from schemas.event import Zone
from schemas.identity import NodeName

PREFIX = "EVERTICK_"
NOT_SETTINGS = {"EVERTICK_CONFIG", "EVERTICK_CACHE_DIR"}
_PLACES = (Path("evertick.toml"), Path("/etc/evertick/evertick.toml"))
_M = TypeVar("_M", bound=BaseModel)


class SettingsError(Exception):
    """A setting that is unknown or does not fit; the text names it and the fix."""


def _words(value: Any) -> Any:
    """Let the environment and flags write a list as ``a,b``."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


Words = Annotated[list[str], BeforeValidator(_words)]


class Section(BaseModel):
    """Base of a table of settings: unknown names are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True)


class KafkaSettings(Section):
    """How to reach Kafka."""

    bootstrap: str = "127.0.0.1:9092"
    """``host:port``, several with commas between."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    """Put before every topic's name."""
    replication: Annotated[int, Field(ge=1, le=7)] = 1
    """Replicas of the topics that Evertick creates; 3 on a real cluster."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    ssl_ca_file: str = ""
    """Certificates to trust; the system's where empty."""

    def client(self, client_id: str) -> dict[str, str | int | float | bool]:
        """The settings as librdkafka names them."""
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap,
            "client.id": client_id,
            "security.protocol": self.security_protocol,
            # A broker that comes back is found within a second, not after the default's ten.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "socket.keepalive.enable": True,
            # Its complaints go through our own log, once, not to stderr.
            "log_level": 0,
        }
        if self.security_protocol.startswith("SASL"):
            config |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.sasl_username,
                "sasl.password": self.sasl_password.get_secret_value(),
            }
        if self.ssl_ca_file:
            config["ssl.ca.location"] = self.ssl_ca_file
        return config


def _reachable(url: str) -> str:
    """Refuse, without showing it, a URL without a host, or with a password, which would be in every
    complaint about it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise ValueError("no host and port in it; write http://HOST:8123")
    if "@" in parts.netloc:
        raise ValueError("user and password are settings of their own: user, password")
    return url


class ClickHouseSettings(Section):
    """How to reach ClickHouse, or the embedded engine's HTTP front."""

    url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_reachable)] = (
        "http://127.0.0.1:8123"
    )
    user: str = "default"
    password: SecretStr = SecretStr("")
    database: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")] = "evertick"


class AgentSettings(Section):
    """The node agent."""

    node: NodeName = socket.gethostname().split(".")[0] or "localhost"
    """This host's name in the fleet."""
    spool_max_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20
    """Disk that events may take while Kafka is away; the oldest samples are dropped first."""


class MetricsSettings(Section):
    """Where each long-running part serves ``/metrics`` and ``/healthz``; port 0 serves nothing."""

    host: str = "127.0.0.1"
    agent_port: Annotated[int, Field(ge=0, le=65535)] = 9461
    stream_port: Annotated[int, Field(ge=0, le=65535)] = 9462
    remediate_port: Annotated[int, Field(ge=0, le=65535)] = 9463
    history_port: Annotated[int, Field(ge=0, le=65535)] = 9464


class EmbeddedSettings(Section):
    """The stack behind ``evertick up``."""

    host: str = "127.0.0.1"
    """Address that Kafka and the history listen on."""
    kafka_port: Annotated[int, Field(ge=1, le=65535)] = 9092
    kafka_controller_port: Annotated[int, Field(ge=1, le=65535)] = 9093
    clickhouse_port: Annotated[int, Field(ge=1, le=65535)] = 8123
    data_max_bytes: Annotated[int, Field(ge=1 << 30)] = 5 << 30
    """Bound on the data folder, however long the stack runs."""


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        nested_model_default_partial_update=True,
    )

    file: ClassVar[Path | None] = None

    zone: Zone = "default"
    """The part of the fleet that this process belongs to."""
    data_dir: Path = user_data_path("evertick")
    """Everything Evertick keeps on this host."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    kafka: KafkaSettings = KafkaSettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    agent: AgentSettings = AgentSettings()
    metrics: MetricsSettings = MetricsSettings()
    embedded: EmbeddedSettings = EmbeddedSettings()
    collectors: dict[str, dict[str, Any]] = {}
    """A table for each collector, by name; ``enabled`` and ``interval_s`` fit all of them."""
    detectors: dict[str, dict[str, Any]] = {}
    correlator: dict[str, Any] = {}
    remedies: dict[str, dict[str, Any]] = {}
    history: dict[str, Any] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before environment before file."""
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls, toml_file=cls.file),
        )


def load(flags: Iterable[str] = (), config: Path | None = None) -> Settings:
    """Read the settings.

    Args:
        flags: ``name=value`` pairs, ``name`` with dots.
        config: the file to read instead of the usual places.

    Raises:
        SettingsError: a file that cannot be read, an unknown name, a value that does not fit.
    """
    _refuse_unknown_environment()
    path = _file(config)

    class FromFile(Settings):
        file: ClassVar[Path | None] = path

    try:
        return FromFile(**_flags(flags))
    except ValidationError as error:
        raise SettingsError(_told(error, Settings)) from None
    except SourceError as error:
        # Its text names the table and shows no value.
        raise SettingsError(
            f"environment: {error}; write a whole table as JSON, or each of its settings as "
            f"{PREFIX}TABLE__NAME=value"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"cannot read settings from {path}: {error}") from None


def section(model: type[_M], table: Mapping[str, Any], where: str) -> _M:
    """Check one table of a registry's settings against its owner's model.

    Raises:
        SettingsError: naming the setting below ``where``.
    """
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise SettingsError(_told(error, model, where)) from None


def _file(config: Path | None) -> Path | None:
    named = config or (
        Path(os.environ["EVERTICK_CONFIG"]) if "EVERTICK_CONFIG" in os.environ else None
    )
    if named is not None and not named.is_file():
        raise SettingsError(f"settings file {named} is not there; name another with --config")
    return named or next((place for place in _PLACES if place.is_file()), None)


def _flags(flags: Iterable[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or not name:
            raise SettingsError(
                f"--set {flag}: write it as name=value, such as kafka.bootstrap=host:9092"
            )
        *path, last = name.split(".")
        inner = table
        for step in path:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"--set {flag}: {step} is given twice")
        inner[last] = value
    return table


def _refuse_unknown_environment() -> None:
    """pydantic-settings passes over a variable whose first word it does not know; we do not."""
    for variable in os.environ:
        if not variable.upper().startswith(PREFIX) or variable.upper() in NOT_SETTINGS:
            continue
        first = variable[len(PREFIX) :].lower().split("__")[0]
        if first not in Settings.model_fields:
            near = difflib.get_close_matches(first, Settings.model_fields, n=1)
            hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
            raise SettingsError(f"environment variable {variable}: no such setting{hint}")


def _told(error: ValidationError, model: type[BaseModel], where: str = "") -> str:
    """The faults of a validation, each with the setting's full name and, for a misspelt one, the
    nearest that exists. Values are not shown: one may be a secret."""
    told = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        path = [str(step) for step in fault["loc"]]
        name = ".".join([where, *path] if where else path)
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path[-1], _names_at(model, path[:-1]), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            told.append(f"setting {name}: no such setting{hint}")
        else:
            told.append(f"setting {name}: {fault['msg']}")
    return "\n".join(told)


def _names_at(model: type[BaseModel], path: list[str]) -> list[str]:
    for step in path:
        field = model.model_fields.get(step)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
