"""The drift of devices' models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the column."""
    op.add_column("devices", sa.Column("drift", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("devices", "drift")
