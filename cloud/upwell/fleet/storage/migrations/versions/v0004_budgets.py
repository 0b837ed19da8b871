"""Budgets of the fleet, and each device's share of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "budgets",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("group", sa.String(length=100), nullable=True),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("goal", sa.JSON(), nullable=False),
        sa.Column("curves", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("period_start_unix_s", sa.Float(), nullable=True),
        sa.Column("spent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("solved_unix_s", sa.Float(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_budgets")),
    )
    op.create_table(
        "budget_members",
        sa.Column("budget", sa.String(length=100), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("shares", sa.JSON(), nullable=False),
        sa.Column("since_unix_s", sa.Float(), nullable=False),
        sa.Column("uplink_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["budget"], ["budgets.name"], name=op.f("fk_budget_members_budget")),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_budget_members_device_id")),
        sa.PrimaryKeyConstraint("budget", "device_id", name=op.f("pk_budget_members")),
    )
    op.create_index(op.f("ix_budget_members_device_id"), "budget_members", ["device_id"], unique=False)
    op.add_column("devices", sa.Column("shares", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("devices", "shares")
    op.drop_index(op.f("ix_budget_members_device_id"), table_name="budget_members")
    op.drop_table("budget_members")
    op.drop_table("budgets")
