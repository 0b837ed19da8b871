"""Run by alembic for each migration, in the transaction of the given connection."""

from __future__ import annotations

from alembic import context

from upwell.fleet.storage.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
