"""`upwell model init`: a first model.yaml, from what the model's own files say."""
