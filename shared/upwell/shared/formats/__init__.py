"""Model files and arrays: one reader per format."""
