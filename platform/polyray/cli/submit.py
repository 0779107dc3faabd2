"""From a workload's file to a submitted workload: read, check, pack, send."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyray.cli.render import Format, Json, amounts, emit_list, emit_one, emit_text, say, simulated, usd
from polyray.core.errors import Invalid

if TYPE_CHECKING:
    from polyray.core.spec import WorkloadSpec
    from polyray.sdk.client import PolyrayClient

_ROUTES = {"job": ("jobs", "polyray job submit"), "session": ("sessions", "polyray session start --file")}
_ROUTES["service"] = ("services", "polyray service deploy")


def read_spec(file: Path, kind: str) -> WorkloadSpec:
    """Read a workload of one kind.

    Raises:
        Invalid: naming the field and the way out.
    """
    from polyray.core.spec import load_workload

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read it: {error}", field=str(file)) from error
    spec = load_workload(text)
    if spec.kind != kind:
        raise Invalid(f"this is a {spec.kind}", field="kind", hint=f"use '{_ROUTES[spec.kind][1]} {file}'")
    return spec


def send_spec(client: PolyrayClient, spec: WorkloadSpec, base: Path, *, dry_run: bool = False) -> Json:
    """Pack and send the working directory (relative to `base`), then submit. A dry run packs, and sends no byte."""
    content: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    route = _ROUTES[spec.kind][0]
    if spec.working_dir is None:
        return client.submit(route, content, dry_run=dry_run)
    from polyray.sdk.package import pack

    with tempfile.TemporaryDirectory(prefix="polyray-") as directory:
        package = pack(base / spec.working_dir, Path(directory) / "code.zip")
        what = f"{spec.working_dir}: {len(package.names)} file(s), {package.size_bytes} bytes"
        if dry_run:
            say(f"{what} would be sent")
            del content["working_dir"]
        else:
            sent = client.put_blob(package.path, package.sha256)
            say(f"{what} {'sent' if sent else 'were there already'}")
            content["working_dir"] = package.sha256
        return client.submit(route, content, dry_run=dry_run)


def emit_plan(plan: Json, output: Format) -> None:
    """Print the priced plan of a dry run."""
    if output is not Format.TABLE:
        emit_one(plan, {}, output)
        return
    emit_one(
        plan,
        {
            "kind": "kind",
            "name": "name",
            "tenant": "tenant",
            "project": "project",
            "bundles": lambda row: "; ".join(amounts(bundle) for bundle in row["bundles"]),
            "in all": lambda row: amounts(row["total"]),
            "an hour": lambda row: usd(row["usd_micros_per_hour"]),
            "at most": lambda row: usd(row["max_usd_micros"]),
        },
        output,
    )
    emit_text("")
    emit_list(
        plan["offers"],
        {
            "OFFERING": lambda row: simulated(row["offering"], row),
            "POOL": "pool",
            "CAPACITY": "capacity_type",
            "NODES": "nodes",
            "AN HOUR": lambda row: usd(row["usd_micros_per_hour"]),
        },
        output,
        empty="no offering of the cloud holds all of it alone; with reserved nodes it may start",
    )
