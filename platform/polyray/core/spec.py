"""One YAML for every workload, with the same keys everywhere.

    kind: job
    name: digits
    resources: {gpu: h100:8, cpu: 16, memory: 64GiB}   # of each worker
    workers: 2
    capacity: [reserved, on_demand]
    datasets: [digits@1]
    working_dir: .
    run: python train.py

Parsing is strict: an unknown key, a wrong type or a number that makes no sense is refused with the name
of the field and the way out, before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from polyray.core.errors import Invalid
from polyray.core.ids import parse_slug, shown
from polyray.core.money import parse_usd
from polyray.core.resources import Resources, parse_bundle
from polyray.core.yaml_text import load_yaml

MAX_WORKERS = 1000
MAX_ENV = 200
MAX_ENV_CHARACTERS = 32_768
#: Linux takes no argument of a program that has more than 128 KiB, and this one goes to bash.
MAX_RUN_BYTES = 100_000

#: What the head of a cluster needs when it carries no bundle of its own.
HEAD = Resources(cpu=1000, memory=2**30)

_DURATION = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|d)")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Variables that are the platform's own: a workload that could set them could reach outside itself.
PLATFORM_ENV = re.compile(
    r"(RAY_.*|POLYRAY_.*|LD_.*|PYTHONPATH|PYTHONHOME|PYTHONUSERBASE|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES"
    r"|GRPC_ENABLE_FORK_SUPPORT|HOME|PATH|TMPDIR)"
)


class Kind(StrEnum):
    JOB = "job"
    SESSION = "session"
    SERVICE = "service"


class CapacityType(StrEnum):
    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


class RetryReason(StrEnum):
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    CLUSTER_LOST = "cluster_lost"


def parse_duration_ms(value: object, *, field: str) -> int:
    """Return `"90s"`, `"12h"`, `"3d"` in milliseconds."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        duration = int(match[1]) * _DURATION_MS[match[2]]
        if 0 < duration <= 366 * 86_400_000:
            return duration
    raise Invalid(
        f"{shown(value)} is not a duration",
        field=field,
        hint="write it with its unit, such as 90s or 12h; a year at most",
    )


@dataclass(frozen=True)
class DatasetRef:
    """`name@version`: a dataset version of the tenant."""

    name: str
    version: int

    @classmethod
    def parse(cls, text: object, *, field: str) -> DatasetRef:
        name, at, version = text.partition("@") if isinstance(text, str) else ("", "", "")
        if not at or not re.fullmatch(r"[1-9][0-9]{0,8}", version):
            raise Invalid(
                f"{shown(text)} does not name a version", field=field, hint="write name@version, such as digits@1"
            )
        return cls(parse_slug(name, field=field), int(version))

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


class Retry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    on: tuple[RetryReason, ...] = (RetryReason.PREEMPTED, RetryReason.NODE_LOST, RetryReason.CLUSTER_LOST)
    #: Retries beyond the first attempt.
    limit: Annotated[int, Field(strict=True, ge=0, le=100)] = 3


def _slug(value: object, info: ValidationInfo) -> str:
    return parse_slug(value, field=info.field_name or "name")


def _check_text(text: str, *, field: str) -> None:
    """Refuse what no command line, environment or file name can carry: a NUL, half of a surrogate pair."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid("it has a character that no program can be given", field=field, hint="remove NULs and surrogates")


class WorkloadSpec(BaseModel):
    """A validated workload. `resources` are those of one worker, in the units of `core.resources`."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    kind: Kind
    name: Annotated[str, BeforeValidator(_slug)]
    project: Annotated[str, BeforeValidator(_slug)] = "default"
    #: Exactly as given; `bundle` is the parsed form.
    resources: dict[str, Any] = Field(default_factory=dict)
    workers: Annotated[int, Field(strict=True, ge=1, le=MAX_WORKERS)] = 1
    priority: Literal["low", "normal", "high"] = "normal"
    capacity: tuple[CapacityType, ...] = (CapacityType.RESERVED, CapacityType.ON_DEMAND)
    #: How long it may wait for reserved capacity before the cloud is asked. None: not at all.
    max_wait: str | None = None
    max_cost: Any = None
    max_duration: str | None = None
    retry: Retry = Retry()
    datasets: tuple[str, ...] = ()
    #: A registered model version (`name@version`) that a service serves.
    model: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    #: On the client a directory; in the store the SHA-256 of the packed one.
    working_dir: str | None = None
    #: A job's command line, run by bash in the working directory.
    run: str | None = None
    #: A service's Ray Serve application, `module:attribute`.
    app: str | None = None

    @field_validator("resources")
    @classmethod
    def _resources(cls, value: dict[str, Any]) -> dict[str, Any]:
        parse_bundle(value)
        return value

    @field_validator("capacity")
    @classmethod
    def _capacity(cls, value: tuple[CapacityType, ...]) -> tuple[CapacityType, ...]:
        if not value or len(set(value)) != len(value):
            raise Invalid(
                "name one or more capacity types, each once", field="capacity", hint="such as [reserved, on_demand]"
            )
        return value

    @field_validator("env")
    @classmethod
    def _env(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) > MAX_ENV:
            raise Invalid(f"{len(value)} variables", field="env", hint=f"at most {MAX_ENV}")
        for name, text in value.items():
            if not _ENV_NAME.fullmatch(name):
                raise Invalid(f"{shown(name)} is not a variable's name", field="env")
            if PLATFORM_ENV.fullmatch(name):
                raise Invalid(f"{name} belongs to the platform", field=f"env.{name}", hint="choose another name")
            if len(text) > MAX_ENV_CHARACTERS:
                raise Invalid("the value is too long", field=f"env.{name}", hint=f"at most {MAX_ENV_CHARACTERS}")
            _check_text(text, field=f"env.{name}")
        return value

    @field_validator("datasets")
    @classmethod
    def _datasets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        refs = [DatasetRef.parse(text, field="datasets") for text in value]
        if len({ref.name for ref in refs}) != len(refs):
            raise Invalid("a dataset is named twice", field="datasets", hint="name one version of each")
        return value

    @field_validator("max_wait", "max_duration", mode="before")
    @classmethod
    def _durations(cls, value: object, info: ValidationInfo) -> object:
        if value is not None:
            parse_duration_ms(value, field=info.field_name or "")
        return value

    @field_validator("max_cost")
    @classmethod
    def _cost(cls, value: Any) -> Any:
        if value is not None:
            parse_usd(value, field="max_cost")
        return value

    @field_validator("model")
    @classmethod
    def _model(cls, value: str | None) -> str | None:
        if value is not None:
            DatasetRef.parse(value, field="model")
        return value

    @field_validator("working_dir", "run", "app")
    @classmethod
    def _texts(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            _check_text(value, field=info.field_name or "")
            if len(value.encode()) > MAX_RUN_BYTES:
                hint = f"at most {MAX_RUN_BYTES} bytes; put a program into the working directory"
                raise Invalid("it is too long", field=info.field_name or "", hint=hint)
        return value

    @model_validator(mode="after")
    def _kinds(self) -> WorkloadSpec:
        """There are three cases: a job runs a command, a service serves an app, a session has neither."""
        wanted = {Kind.JOB: "run", Kind.SERVICE: "app"}.get(self.kind)
        for key in ("run", "app"):
            text = getattr(self, key)
            if key == wanted and not (text and text.strip()):
                raise Invalid(f"a {self.kind} needs it", field=key, hint=f"add '{key}:' to the file")
            if key != wanted and text is not None:
                raise Invalid(f"a {self.kind} has no such key", field=key, hint="remove it")
        if self.kind is Kind.SERVICE and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.app or ""):
            raise Invalid(f"{shown(self.app)} does not name an application", field="app", hint="write module:attribute")
        if self.model is not None and self.kind is not Kind.SERVICE:
            raise Invalid("only a service serves a model", field="model", hint="remove it")
        return self

    @property
    def bundle(self) -> Resources:
        """What one worker needs."""
        return parse_bundle(self.resources)

    @property
    def bundles(self) -> tuple[Resources, ...]:
        """The gang, head first.

        There are two cases: a workload of one bundle runs it in the head; one of several has a head of
        its own that carries none, so that losing a worker never costs the driver.
        """
        return (self.bundle,) if self.workers == 1 else (HEAD, *([self.bundle] * self.workers))

    @property
    def dataset_refs(self) -> tuple[DatasetRef, ...]:
        return tuple(DatasetRef.parse(text, field="datasets") for text in self.datasets)

    @property
    def max_wait_ms(self) -> int | None:
        return None if self.max_wait is None else parse_duration_ms(self.max_wait, field="max_wait")

    @property
    def max_duration_ms(self) -> int | None:
        return None if self.max_duration is None else parse_duration_ms(self.max_duration, field="max_duration")

    @property
    def max_cost_usd_micros(self) -> int | None:
        return None if self.max_cost is None else parse_usd(self.max_cost, field="max_cost")


def parse_workload(content: object) -> WorkloadSpec:
    """Return the workload that a mapping (from YAML or JSON) describes.

    Raises:
        Invalid: naming the first field that is wrong and the way out.
    """
    if not isinstance(content, Mapping):
        raise Invalid("a workload is a mapping of keys to values", hint="start with 'kind: job'")
    try:
        return WorkloadSpec.model_validate(dict(content))
    except ValidationError as error:
        raise as_invalid(error) from error


def load_workload(text: str) -> WorkloadSpec:
    """Return the workload that a YAML text describes."""
    return parse_workload(load_yaml(text))


def as_invalid(error: ValidationError) -> Invalid:
    """Return pydantic's first complaint as ours: field, message, way out."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    bounds, given = first.get("ctx", {}), repr(first["input"])[:80]
    words = {
        "extra_forbidden": ("there is no such key", "remove it, or check its spelling"),
        "missing": ("it is missing", "add it"),
        "tuple_type": ("it is not a list", "write [one, two]"),
        "dict_type": ("it is not a mapping", "write {key: value}"),
        "model_type": ("it is not a mapping", "write {key: value}"),
        "string_type": ("it is not text", "write text; a number goes in quotes"),
        "int_type": ("it is not a whole number", "write it without quotes and decimals, such as 2"),
        "less_than_equal": (f"{given} is too much", f"at most {bounds.get('le')}"),
        "greater_than_equal": (f"{given} is too little", f"at least {bounds.get('ge')}"),
        "enum": (f"{given} is none of them", f"write {bounds.get('expected')}"),
        "literal_error": (f"{given} is none of them", f"write {bounds.get('expected')}"),
    }
    message, hint = words.get(first["type"], (first["msg"], ""))
    return Invalid(message, field=field, hint=hint)
