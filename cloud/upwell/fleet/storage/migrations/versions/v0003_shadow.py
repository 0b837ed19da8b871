"""Shadow releases and their reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table, and the column of devices."""
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "shadow_lines",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_shadow_lines_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shadow_lines")),
    )
    op.create_index(op.f("ix_shadow_lines_release"), "shadow_lines", ["release"], unique=False)
    op.create_index(op.f("ix_shadow_lines_at_unix_s"), "shadow_lines", ["at_unix_s"], unique=False)
    op.add_column("devices", sa.Column("shadow", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("devices", "shadow")
    op.drop_index(op.f("ix_shadow_lines_at_unix_s"), table_name="shadow_lines")
    op.drop_index(op.f("ix_shadow_lines_release"), table_name="shadow_lines")
    op.drop_table("shadow_lines")
