"""Commands about an agent: explain, spool, model rollback."""
