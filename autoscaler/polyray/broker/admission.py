"""The last check of a grant against the rows as they are at the moment of writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyray.broker.fit import room_of
from polyray.broker.quota import excess
from polyray.broker.snapshot import NodeView, Placement, TenantView
from polyray.core.resources import total


def violation(placements: Iterable[Placement], nodes: Mapping[str, NodeView], tenant: TenantView) -> str | None:
    """Return why placements may not be granted: quota, a node's state, room or devices; None if they may."""
    placements = tuple(placements)
    if tenant.suspended:
        return f"tenant {tenant.tenant} is suspended"
    over = excess(tenant, tenant.used, total(placement.resources for placement in placements))
    if over is not None:
        return over.sentence
    rooms = {node_id: room_of(node) for node_id, node in nodes.items() if node.ready}
    for placement in placements:
        room = rooms.get(placement.node_id)
        if room is None:
            return f"node {placement.node_id} takes no leases now"
        if not placement.resources.fits(room.free):
            return f"node {placement.node_id} has no room for {placement.resources} any more"
        if any(index >= len(room.devices) or room.devices[index] < share for index, share in placement.devices):
            return f"a GPU of node {placement.node_id} is taken"
        rooms[placement.node_id] = room.without(placement.resources, placement.devices)
    return None
