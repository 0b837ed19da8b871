"""The signature of a model, and the pre- and post-processing that `model.yaml` describes."""
