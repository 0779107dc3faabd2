"""Port blocks of grade `process`: which slice listens where.

All slices of this grade share one machine's loopback, so each gets an address of its own in 127.77.0.0/16
and a block of 100 ports, held as a row. A released block rests before it is given out again: an old
client that retries must find nobody, never another tenant.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.core.errors import Code, PolyrayError
from polyray.store.tables import PortBlock
from polyray.tenants.slices import PORTS_PER_SLICE, Address

#: Grade `process` is one machine: its loopback addresses mean nothing elsewhere.
HOST = "loopback"
#: How long a released block rests: longer than Ray's client retries (30 s).
QUARANTINE_MS = 60_000


def address_of(index: int, first_port: int) -> Address:
    """Return the address of block `index`; `first_port` is where the whole range begins."""
    return Address(ip=f"127.77.{index // 250}.{1 + index % 250}", first_port=first_port + index * PORTS_PER_SLICE)


def allocate(session: Session, lease_id: str, *, first_port: int, end_port: int, now_ms: int) -> int:
    """Give the lease a fresh block, releasing the one it had, and return the block's index.

    Raises:
        PolyrayError: `insufficient_capacity` if every block is held or rests.
    """
    release(session, lease_id, now_ms=now_ms)
    session.flush()
    blocks = {block.index: block for block in session.scalars(select(PortBlock).where(PortBlock.host == HOST))}
    for index in range((end_port - first_port) // PORTS_PER_SLICE):
        block = blocks.get(index)
        if block is None:
            session.add(PortBlock(host=HOST, index=index, lease_id=lease_id, usable_again_ms=None))
            return index
        if block.usable_again_ms is not None and block.usable_again_ms <= now_ms:
            block.lease_id, block.usable_again_ms = lease_id, None
            return index
    raise PolyrayError(
        Code.INSUFFICIENT_CAPACITY,
        f"no block of {PORTS_PER_SLICE} ports is free between {first_port} and {end_port}",
        hint="stop a cluster, or widen slice_ports_start and slice_ports_end",
        retryable=True,
    )


def release(session: Session, lease_id: str, *, now_ms: int) -> None:
    """Send the lease's block to rest. Idempotent."""
    held = session.scalars(select(PortBlock).where(PortBlock.lease_id == lease_id))
    for block in held:
        if block.usable_again_ms is None:
            block.lease_id, block.usable_again_ms = f"rest-{block.index}", now_ms + QUARANTINE_MS


def block_of(session: Session, lease_id: str) -> int | None:
    return session.scalar(select(PortBlock.index).where(PortBlock.lease_id == lease_id))
