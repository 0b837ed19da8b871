"""`upwell model init`, `pack`, `sign`, `verify` and `coverage`: describing, making and checking bundles."""
