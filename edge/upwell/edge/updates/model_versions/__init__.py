"""One model's versions: the first at the start, the switch to a new one, their comparison, rollback by hand."""
