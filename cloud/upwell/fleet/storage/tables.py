"""The tables. Times are Unix seconds, digests lower-case hexadecimal.

To add a table, define it here and write the step that creates it as `migrations/versions/vNNNN_name.py`; a test
compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
METADATA = MetaData(naming_convention=NAMING)

_ROWID = BigInteger().with_variant(Integer, "sqlite")
"""SQLite increments a key automatically only if it is an INTEGER."""

FACTS = Table(
    "facts", METADATA,
    Column("name", String(50), primary_key=True),
    Column("value", Text, nullable=False),
)  # fmt: skip
"""Facts about the service as a whole: its authority."""

DEVICES = Table(
    "devices", METADATA,
    Column("id", String(32), primary_key=True),
    Column("name", String(200), nullable=False, index=True),
    Column("instance_uid", String(32), nullable=False, index=True),
    Column("key_sha256", String(64), nullable=False, unique=True),
    Column("labels", JSON, nullable=False),  # set in the service; they win over those that the device reports
    Column("reported_labels", JSON, nullable=False),
    Column("attributes", JSON, nullable=False),
    Column("health", JSON),
    Column("configuration", JSON),  # file name -> digest
    Column("packages", JSON),
    Column("capabilities", BigInteger, nullable=False),
    Column("custom_capabilities", JSON, nullable=False),
    Column("config_hash", String(64), nullable=False),
    Column("config_status", String(20), nullable=False),
    Column("config_error", Text, nullable=False),
    Column("release", BigInteger),  # the one it reports
    Column("assigned", BigInteger),  # the one it is to run, before its groups' assignments
    Column("assigned_not_before_unix_s", Float),
    Column("rollout", String(32), index=True),  # its active roll-out, at most one
    Column("shadow", BigInteger),  # a shadow release that it is to run
    Column("statistics", JSON),
    Column("drift", JSON),  # by model; null if never reported
    Column("shares", JSON),  # by model the least of its budgets' shares; null without a budget
    Column("started_unix_ns", BigInteger, nullable=False),
    Column("former_started_unix_ns", BigInteger, nullable=False),
    Column("twin_seen_unix_s", Float),
    Column("enrolled_unix_s", Float, nullable=False),
    Column("last_seen_unix_s", Float),
    Column("revoked_unix_s", Float),
)  # fmt: skip

CERTIFICATES = Table(
    "certificates", METADATA,
    Column("serial", String(40), primary_key=True),
    Column("device_id", String(32), ForeignKey("devices.id"), nullable=False, index=True),
    Column("issued_unix_s", Float, nullable=False),
    Column("expires_unix_s", Float, nullable=False),
    Column("revoked_unix_s", Float),
)  # fmt: skip

ENROLMENT_TOKENS = Table(
    "enrolment_tokens", METADATA,
    Column("id", String(32), primary_key=True),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("labels", JSON, nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("created_by", String(100), nullable=False),
    Column("expires_unix_s", Float, nullable=False),
    Column("used_unix_s", Float),
    Column("used_by_key_sha256", String(64)),
)  # fmt: skip

USERS = Table(
    "users", METADATA,
    Column("name", String(100), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("token_sha256", String(64), nullable=False, unique=True),
    Column("created_unix_s", Float, nullable=False),
)  # fmt: skip

GROUPS = Table(
    "groups", METADATA,
    Column("name", String(100), primary_key=True),
    Column("expression", Text, nullable=False),
    Column("release", BigInteger),
    Column("not_before_unix_s", Float),
    Column("created_unix_s", Float, nullable=False),
)  # fmt: skip

QUESTIONS = Table(
    "questions", METADATA,
    Column("id", String(32), primary_key=True),
    Column("device_id", String(32), ForeignKey("devices.id"), nullable=False, index=True),
    Column("request_id", String(200), nullable=False),
    Column("asked_unix_s", Float, nullable=False),
    Column("asked_by", String(100), nullable=False),
    Column("answered_unix_s", Float),
    Column("answer", JSON),
)  # fmt: skip

STATISTICS = Table(
    "statistics", METADATA,
    Column("id", _ROWID, primary_key=True, autoincrement=True),
    Column("device_id", String(32), ForeignKey("devices.id"), nullable=False),
    Column("at_unix_s", Float, nullable=False, index=True),
    Column("release", BigInteger),
    Column("since_unix_s", Float, nullable=False),
    Column("counts", JSON, nullable=False),
    Index("ix_statistics_device_at", "device_id", "at_unix_s"),
)  # fmt: skip
"""The statistics of devices. `counts` grow from `since_unix_s`, which differs for each process and release."""

EVENTS = Table(
    "events", METADATA,
    Column("id", _ROWID, primary_key=True, autoincrement=True),
    Column("at_unix_s", Float, nullable=False, index=True),
    Column("device_id", String(32), nullable=False, index=True),
    Column("kind", String(30), nullable=False),
    Column("text", Text, nullable=False),
)  # fmt: skip
"""Events of devices."""

AUDIT = Table(
    "audit", METADATA,
    Column("id", _ROWID, primary_key=True, autoincrement=True),
    Column("at_unix_s", Float, nullable=False),
    Column("who", String(100), nullable=False),
    Column("action", String(50), nullable=False),
    Column("subject", String(200), nullable=False),
    Column("details", JSON, nullable=False),
)  # fmt: skip
"""Actions of users; append-only."""

SHADOW_LINES = Table(
    "shadow_lines", METADATA,
    Column("id", _ROWID, primary_key=True, autoincrement=True),
    Column("release", BigInteger, nullable=False, index=True),
    Column("device_id", String(32), ForeignKey("devices.id"), nullable=False),
    Column("at_unix_s", Float, nullable=False, index=True),
    Column("line", Text, nullable=False),
)  # fmt: skip
"""Records of shadow releases: lines of a request log, without tags and tensors."""

ROLLOUTS = Table(
    "rollouts", METADATA,
    Column("id", String(32), primary_key=True),
    Column("release", BigInteger, nullable=False),
    Column("group", String(100)),
    Column("expression", Text, nullable=False),
    Column("phase", String(20), nullable=False),
    Column("state", JSON, nullable=False),
    Column("statistics_id", BigInteger, nullable=False),  # the last row of the statistics that it has seen
    Column("is_followed", Boolean, nullable=False, index=True),  # active, or devices are on their way back
    Column("created_by", String(100), nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("over_unix_s", Float),
)  # fmt: skip
"""Roll-outs. `state` is a `Rollout` without its members."""

ROLLOUT_MEMBERS = Table(
    "rollout_members", METADATA,
    Column("rollout_id", String(32), ForeignKey("rollouts.id"), primary_key=True),
    Column("device_id", String(32), ForeignKey("devices.id"), primary_key=True),
    Column("state", JSON, nullable=False),
    Column("counted", JSON),  # the device's last statistics that it has seen
)  # fmt: skip
"""The devices of a roll-out. `state` is a `Member`."""

BUDGETS = Table(
    "budgets", METADATA,
    Column("name", String(100), primary_key=True),
    Column("group", String(100)),
    Column("expression", Text, nullable=False),
    Column("goal", JSON, nullable=False),
    Column("curves", JSON, nullable=False),  # model -> pairs of share and risk
    Column("created_by", String(100), nullable=False),
    Column("created_unix_s", Float, nullable=False),
    Column("period_start_unix_s", Float),
    Column("spent_bytes", BigInteger, nullable=False),
    Column("solved_unix_s", Float),
    Column("result", JSON),
)  # fmt: skip
"""Budgets shared by devices. `goal` is a `BudgetGoal`."""

BUDGET_MEMBERS = Table(
    "budget_members", METADATA,
    Column("budget", String(100), ForeignKey("budgets.name"), primary_key=True),
    Column("device_id", String(32), ForeignKey("devices.id"), primary_key=True, index=True),
    Column("shares", JSON, nullable=False),
    Column("since_unix_s", Float, nullable=False),
    Column("uplink_bytes", BigInteger, nullable=False),
)  # fmt: skip
"""The devices of a budget: the share of each by model, and its byte count when last checked."""
