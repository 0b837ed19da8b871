"""`upwell model quantize`: int8 models from float ones, with the loss measured on the user's own data."""
