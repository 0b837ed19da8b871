"""One module per step, `v0001_...`: `revision` is its number, `down_revision` the one before."""
