"""`upwell model init`, `pack`, `sign`, `verify` and `coverage`: describe, make and check bundles."""
