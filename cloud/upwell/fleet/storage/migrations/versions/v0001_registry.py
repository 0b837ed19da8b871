"""The registry, its users and its events: the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("who", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=50), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("instance_uid", sa.String(length=32), nullable=False),
        sa.Column("key_sha256", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("reported_labels", sa.JSON(), nullable=False),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("health", sa.JSON(), nullable=True),
        sa.Column("configuration", sa.JSON(), nullable=True),
        sa.Column("packages", sa.JSON(), nullable=True),
        sa.Column("capabilities", sa.BigInteger(), nullable=False),
        sa.Column("custom_capabilities", sa.JSON(), nullable=False),
        sa.Column("config_hash", sa.String(length=64), nullable=False),
        sa.Column("config_status", sa.String(length=20), nullable=False),
        sa.Column("config_error", sa.Text(), nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=True),
        sa.Column("assigned", sa.BigInteger(), nullable=True),
        sa.Column("assigned_not_before_unix_s", sa.Float(), nullable=True),
        sa.Column("statistics", sa.JSON(), nullable=True),
        sa.Column("started_unix_ns", sa.BigInteger(), nullable=False),
        sa.Column("former_started_unix_ns", sa.BigInteger(), nullable=False),
        sa.Column("twin_seen_unix_s", sa.Float(), nullable=True),
        sa.Column("enrolled_unix_s", sa.Float(), nullable=False),
        sa.Column("last_seen_unix_s", sa.Float(), nullable=True),
        sa.Column("revoked_unix_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
        sa.UniqueConstraint("key_sha256", name=op.f("uq_devices_key_sha256")),
    )
    op.create_index(op.f("ix_devices_instance_uid"), "devices", ["instance_uid"], unique=False)
    op.create_index(op.f("ix_devices_name"), "devices", ["name"], unique=False)
    op.create_table(
        "enrolment_tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("expires_unix_s", sa.Float(), nullable=False),
        sa.Column("used_unix_s", sa.Float(), nullable=True),
        sa.Column("used_by_key_sha256", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_enrolment_tokens")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_enrolment_tokens_token_sha256")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=30), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_at_unix_s"), "events", ["at_unix_s"], unique=False)
    op.create_index(op.f("ix_events_device_id"), "events", ["device_id"], unique=False)
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_facts")),
    )
    op.create_table(
        "groups",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=True),
        sa.Column("not_before_unix_s", sa.Float(), nullable=True),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_groups")),
    )
    op.create_table(
        "users",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_unix_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_users")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_users_token_sha256")),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("issued_unix_s", sa.Float(), nullable=False),
        sa.Column("expires_unix_s", sa.Float(), nullable=False),
        sa.Column("revoked_unix_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_certificates_device_id")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_certificates")),
    )
    op.create_index(op.f("ix_certificates_device_id"), "certificates", ["device_id"], unique=False)
    op.create_table(
        "questions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("request_id", sa.String(length=200), nullable=False),
        sa.Column("asked_unix_s", sa.Float(), nullable=False),
        sa.Column("asked_by", sa.String(length=100), nullable=False),
        sa.Column("answered_unix_s", sa.Float(), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_questions_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_questions")),
    )
    op.create_index(op.f("ix_questions_device_id"), "questions", ["device_id"], unique=False)
    op.create_table(
        "statistics",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("device_id", sa.String(length=32), nullable=False),
        sa.Column("at_unix_s", sa.Float(), nullable=False),
        sa.Column("release", sa.BigInteger(), nullable=True),
        sa.Column("since_unix_s", sa.Float(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["devices.id"], name=op.f("fk_statistics_device_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_statistics")),
    )
    op.create_index(op.f("ix_statistics_at_unix_s"), "statistics", ["at_unix_s"], unique=False)
    op.create_index("ix_statistics_device_at", "statistics", ["device_id", "at_unix_s"], unique=False)


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_statistics_device_at", table_name="statistics")
    op.drop_index(op.f("ix_statistics_at_unix_s"), table_name="statistics")
    op.drop_table("statistics")
    op.drop_index(op.f("ix_questions_device_id"), table_name="questions")
    op.drop_table("questions")
    op.drop_index(op.f("ix_certificates_device_id"), table_name="certificates")
    op.drop_table("certificates")
    op.drop_table("users")
    op.drop_table("groups")
    op.drop_table("facts")
    op.drop_index(op.f("ix_events_device_id"), table_name="events")
    op.drop_index(op.f("ix_events_at_unix_s"), table_name="events")
    op.drop_table("events")
    op.drop_table("enrolment_tokens")
    op.drop_index(op.f("ix_devices_name"), table_name="devices")
    op.drop_index(op.f("ix_devices_instance_uid"), table_name="devices")
    op.drop_table("devices")
    op.drop_table("audit")
