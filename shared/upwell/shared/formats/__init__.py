"""Model files and arrays: one reader of each format."""
