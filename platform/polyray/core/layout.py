"""Where a tenant's artefacts live under the store's root.

    tenants/T/blobs/SHA256                 packed code and dataset files, by content
    tenants/T/datasets/NAME/VERSION/       manifest.json; its files are blobs
    tenants/T/models/NAME/VERSION/         the files of a model version
    tenants/T/runs/WORKLOAD/               run.json, code/, datasets/, logs/, records.jsonl, checkpoints/, artifacts/

Every part of a path is a slug, an id, a digest or a number that was validated before; nothing here is
built from free text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from polyray.core.errors import Invalid
from polyray.core.ids import SLUG, is_id, shown

_SHA256 = re.compile(r"[0-9a-f]{64}")


def parse_sha256(text: object, *, field: str) -> str:
    if isinstance(text, str) and _SHA256.fullmatch(text):
        return text
    raise Invalid(f"{shown(text)} is not a SHA-256", field=field, hint="64 hexadecimal digits in lower case")


@dataclass(frozen=True)
class Layout:
    root: Path

    def tenant(self, tenant: str) -> Path:
        return self.root / "tenants" / _checked(tenant)

    def blob(self, tenant: str, sha256: str) -> Path:
        return self.tenant(tenant) / "blobs" / parse_sha256(sha256, field="sha256")

    def dataset(self, tenant: str, name: str, version: int) -> Path:
        return self.tenant(tenant) / "datasets" / _checked(name) / _number(version)

    def model(self, tenant: str, name: str, version: int) -> Path:
        return self.tenant(tenant) / "models" / _checked(name) / _number(version)

    def run(self, tenant: str, workload_id: str) -> Path:
        return self.tenant(tenant) / "runs" / _checked(workload_id)

    def driver_log(self, tenant: str, workload_id: str) -> Path:
        return self.run(tenant, workload_id) / "logs" / "driver.log"

    def records(self, tenant: str, workload_id: str) -> Path:
        """Append-only JSON lines that the run writes: metrics, checkpoints, the model it made."""
        return self.run(tenant, workload_id) / "records.jsonl"


def _checked(part: str) -> str:
    if SLUG.fullmatch(part) or is_id(part):
        return part
    raise ValueError(f"{part!r} must have been validated before it reaches a path")


def _number(version: int) -> str:
    if version < 1:
        raise ValueError(f"{version!r} must have been validated before it reaches a path")
    return str(int(version))
