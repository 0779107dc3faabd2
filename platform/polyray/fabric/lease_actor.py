"""The lease as the core holds it: a detached actor on the lease's node, with the slice as its child.

The actor's death, or its node's, is the slice's death: parent-death signals see to that.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from polyray.core.log import configure
from polyray.fabric.lease import Lease
from polyray.tenants.sandboxes.process import ProcessSandbox
from polyray.tenants.slices import DriverSpec, SliceSpec, SliceStatus


class LeaseActor:
    """Its methods return at once: the lease's own thread does what takes time.

    Pydantic models cross as JSON text, so that nothing but plain data is unpickled here.
    """

    def __init__(
        self, lease_id: str, cluster_id: str, node_id: str, epoch: int, ray_dir: str, concurrent_starts: int
    ) -> None:
        configure(component="lease")
        self._lease = Lease(
            lease_id,
            cluster_id,
            node_id,
            epoch,
            ProcessSandbox(Path(ray_dir)),
            starts_dir=Path(ray_dir) / "starts",
            concurrent_starts=concurrent_starts,
        )

    async def status(self) -> str:
        status: SliceStatus = self._lease.status()
        return status.model_dump_json()

    async def start_slice(self, spec: str) -> None:
        self._lease.start_slice(SliceSpec.model_validate_json(spec))

    async def kill_slice(self) -> None:
        self._lease.kill_slice()

    async def start_driver(self, spec: str) -> None:
        self._lease.start_driver(DriverSpec.model_validate_json(spec))

    async def stop_driver(self, driver_id: str, grace_seconds: float) -> None:
        self._lease.stop_driver(driver_id, grace_seconds)

    async def end(self, wait_seconds: float) -> bool:
        """End the slice for good; return whether nothing of it is left."""
        self._lease.end()
        return await asyncio.to_thread(self._lease.ended.wait, wait_seconds)
