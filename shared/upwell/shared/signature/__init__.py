"""What a model takes and gives: its signature, and the pre- and post-processing that `model.yaml` describes."""
