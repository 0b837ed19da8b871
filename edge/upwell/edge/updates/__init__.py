"""New versions of models: sources, installed versions, trial, rollback."""
