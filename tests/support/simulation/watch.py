"""The part of the invariants that is looked at after each step: what would otherwise be right again in a moment."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict

from polyray.tenants.slices import SliceState
from support.world import World

_LEASES = """
    SELECT lease_id, cluster_id, node_id, tenant, resources, devices FROM leases WHERE state != 'released'
"""
_CLUSTERS = "SELECT cluster_id, workload_id FROM clusters WHERE state != 'gone'"
_NODES = "SELECT node_id, resources FROM nodes WHERE state != 'terminated'"
_QUOTAS = "SELECT tenant, flavor, nominal + borrowing_limit FROM quotas"
_UP = {SliceState.STARTING, SliceState.READY}


class Watch:
    def __init__(self, world: World) -> None:
        self._world = world
        self._database = sqlite3.connect(world.settings.state_dir / "polyray.db", isolation_level=None)

    def close(self) -> None:
        self._database.close()

    def look(self) -> None:
        """Assert that nothing is given twice, and that nothing is alive twice or without an owner."""
        living = self._living_clusters()
        for lease_id, cluster_id in self._world.fabric.held.items():
            assert cluster_id in living, f"I2: the core holds {lease_id} of {cluster_id}, which nobody owns"
        self._leases_fit(living)
        programs = Counter(driver.rpartition(".")[0] for driver in self._world.fabric.running_drivers)
        assert max(programs.values(), default=0) <= 1, f"I3: a program runs twice: {programs}"
        addresses = Counter(spec.address for spec, state in self._world.fabric.started if state in _UP)
        assert max(addresses.values(), default=0) <= 1, "two slices share an address"

    def the_leader_writes(self, name: str) -> None:
        """Assert, right before a reconciler's commit, that its control plane has not been succeeded."""
        (owner,) = self._database.execute("SELECT owner FROM claims WHERE key = 'leader'").fetchone()
        assert owner == name, f"I2: {name} writes after {owner} took over from it"

    def _living_clusters(self) -> set[str]:
        rows = self._database.execute(_CLUSTERS).fetchall()
        alive = Counter(workload_id for _, workload_id in rows)
        assert max(alive.values(), default=0) <= 1, f"I3: a workload is alive twice: {alive}"
        return {cluster_id for cluster_id, _ in rows}

    def _leases_fit(self, living: set[str]) -> None:
        rooms = {node_id: json.loads(resources) for node_id, resources in self._database.execute(_NODES)}
        on_node: dict[str, Counter[str]] = defaultdict(Counter)
        of_tenant: dict[str, Counter[str]] = defaultdict(Counter)
        devices: Counter[tuple[str, str]] = Counter()
        for lease_id, cluster_id, node_id, tenant, resources, shares in self._database.execute(_LEASES):
            assert cluster_id in living, f"I2: {lease_id} outlives its cluster"
            assert node_id in rooms, f"I2: {lease_id} is on a node that is gone"
            on_node[node_id].update(json.loads(resources))
            of_tenant[tenant].update(json.loads(resources))
            devices.update({(node_id, index): int(share) for index, share in json.loads(shares).items()})
        for node_id, held in on_node.items():
            over = {flavor for flavor, amount in held.items() if amount > rooms[node_id].get(flavor, 0)}
            assert not over, f"I1: {node_id} is given twice: {over}"
        assert max(devices.values(), default=0) <= 1000, "I1: a GPU is given twice"
        for tenant, flavor, most in self._database.execute(_QUOTAS):
            assert of_tenant[tenant][flavor] <= most, f"I1: {tenant} is over its quota of {flavor}"
