"""What a workload keeps when it is tried again: its place in the queue, and a pause before the next attempt.

Events become a chain: those that are there are chained in their order.
"""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


#: Without them what is done each second, or for each page, reads all that ever was.
INDEXES = [
    ("ix_workloads_queue", "workloads", ["state", "created_ms", "workload_id"]),
    ("ix_workloads_created", "workloads", ["created_ms", "workload_id"]),
    ("ix_clusters_workload", "clusters", ["workload_id"]),
    ("ix_leases_node", "leases", ["node_id", "state"]),
    ("ix_leases_workload", "leases", ["workload_id"]),
]


def upgrade() -> None:
    op.add_column("workloads", sa.Column("not_before_ms", sa.BigInteger(), nullable=True))
    op.add_column("workloads", sa.Column("history_removed_ms", sa.BigInteger(), nullable=True))
    op.add_column("leases", sa.Column("short_starts", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("leases", sa.Column("slice_started_ms", sa.BigInteger(), nullable=True))
    op.add_column("events", sa.Column("chain", sa.String(64), server_default="", nullable=False))
    _chain_events(op.get_bind())
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def _chain_events(connection: sa.Connection) -> None:
    """Chain all events as `polyray.store.chain` does today; that this stays so, whatever becomes of that, is meant."""
    said = ("at_ms", "kind", "entity_id", "tenant", "start", "finish", "reason")
    events = sa.table("events", sa.column("event_id"), sa.column("chain"), *map(sa.column, said))
    page = sa.select(events.c.event_id, *(events.c[name] for name in said)).order_by(events.c.event_id).limit(1000)
    put = sa.update(events).where(events.c.event_id == sa.bindparam("of")).values(chain=sa.bindparam("hash"))
    last, before = 0, "0" * 64
    while rows := connection.execute(page.where(events.c.event_id > last)).all():
        chained = []
        for event_id, *values in rows:
            text = json.dumps([before, *values], ensure_ascii=True, separators=(",", ":"))
            before = hashlib.sha256(text.encode()).hexdigest()
            chained.append({"of": event_id, "hash": before})
        connection.execute(put, chained)
        last = rows[-1].event_id


def downgrade() -> None:
    for name, table, _ in INDEXES:
        op.drop_index(name, table)
    op.drop_column("events", "chain")
    op.drop_column("leases", "slice_started_ms")
    op.drop_column("leases", "short_starts")
    op.drop_column("workloads", "history_removed_ms")
    op.drop_column("workloads", "not_before_ms")
