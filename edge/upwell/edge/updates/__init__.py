"""New versions of models and whole releases: where they come from, what is installed, trial, rollback."""
