"""From messages to tensors and back."""
