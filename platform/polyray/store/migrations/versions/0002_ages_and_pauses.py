"""What a workload keeps when it is tried again: its place in the queue, and a pause before the next attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workloads", sa.Column("not_before_ms", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("workloads", "not_before_ms")
