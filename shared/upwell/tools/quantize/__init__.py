"""`upwell model quantize`: int8 models from float ones, with what it costs measured on the user's own data."""
