"""The first schema. No version is released yet, so it is that of the tables themselves.

The release freezes it: from then on this step creates the tables as they were, and each change of theirs is a step.
"""

from __future__ import annotations

from alembic import op

from upwell.fleet.storage.tables import METADATA

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    METADATA.create_all(op.get_bind())


def downgrade() -> None:
    """Drop them."""
    METADATA.drop_all(op.get_bind())
