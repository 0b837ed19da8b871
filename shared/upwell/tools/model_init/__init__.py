"""`upwell model init`: a first model.yaml, from the metadata in and beside the model's file."""
