"""Roll-outs and their devices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "rollouts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=False),
        sa.Column("group", sa.String(length=100), nullable=True),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("phase", sa.String(length=20), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("statistics_id", sa.BigInteger(), nullable=False),
        sa.Column("is_followed", sa.Boolean(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("over_unix_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollouts")),
    )
    op.create_index(op.f("ix_rollouts_is_followed"), "rollouts", ["is_followed"], unique=False)
    op.create_table(
        "rollout_members",
        sa.Column("rollout_id", sa.String(length=32), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("counted", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_rollout_members_device_id")),
        sa.ForeignKeyConstraint(["rollout_id"], ["rollouts.id"], name=op.f("fk_rollout_members_rollout_id")),
        sa.PrimaryKeyConstraint("rollout_id", "device_id", name=op.f("pk_rollout_members")),
    )
    op.add_column("devices", sa.Column("rollout", sa.String(length=32), nullable=True))
    op.create_index(op.f("ix_devices_rollout"), "devices", ["rollout"], unique=False)


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_devices_rollout"), table_name="devices")
    op.drop_column("devices", "rollout")
    op.drop_table("rollout_members")
    op.drop_index(op.f("ix_rollouts_is_followed"), table_name="rollouts")
    op.drop_table("rollouts")
