"""`upwell drift` and `upwell model reference`: the distribution of rows, and how it has changed since."""
