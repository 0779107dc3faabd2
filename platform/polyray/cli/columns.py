"""How workloads look in tables."""

from __future__ import annotations

from polyray.cli.render import Columns, Json, amounts, simulated, took, when


def where(view: Json) -> str:
    """Return the nodes a workload's bundles are on; simulated ones say so."""
    placements = view.get("placements") or []
    return ", ".join(simulated(f"{p['node_id']} ({p['pool']}, {p['capacity_type']})", p) for p in placements)


def cause(view: Json) -> str:
    """Return why it is where it is: the broker's word while it waits, else how it came there."""
    explanation = view.get("explanation") if view["state"] == "queued" else None
    return str((explanation or {}).get("cause") or view.get("state_reason") or "")


def run_time(view: Json) -> str:
    if view.get("started_ms") is None or view.get("ended_ms") is None:
        return ""
    return took(view["ended_ms"] - view["started_ms"])


def wait_time(view: Json) -> str:
    if view.get("started_ms") is None:
        return ""
    return took(view["started_ms"] - view["created_ms"])


WORKLOADS: Columns = {
    "ID": "id",
    "KIND": "kind",
    "NAME": "name",
    "PROJECT": "project",
    "STATE": "state",
    "BY": "submitted_by",
    "SUBMITTED": lambda view: when(view.get("created_ms")),
    "REASON": cause,
}

WORKLOAD: Columns = {
    "id": "id",
    "kind": "kind",
    "name": "name",
    "tenant": "tenant",
    "project": "project",
    "state": "state",
    "reason": cause,
    "unblocks": lambda view: (view.get("explanation") or {}).get("unblocks") if view["state"] == "queued" else None,
    "attempt": "attempt",
    "exit code": "exit_code",
    "by": "submitted_by",
    "submitted": lambda view: when(view.get("created_ms")),
    "started": lambda view: when(view.get("started_ms")),
    "ended": lambda view: when(view.get("ended_ms")),
    "waited": wait_time,
    "ran": run_time,
    "cluster": lambda view: "{id} ({state})".format(**view["cluster"]) if view.get("cluster") else None,
    "placed on": where,
    "url": "url",
}

NODES: Columns = {
    "NODE": "node_id",
    "POOL": lambda row: simulated(row["pool"], row),
    "CAPACITY": "capacity_type",
    "STATE": "state",
    "RESOURCES": lambda row: amounts(row.get("resources")),
    "USED": lambda row: amounts(row.get("used")),
    "FOR": "launched_for",
    "REASON": "state_reason",
}
