"""Programs of torch.export: a graph of ATen operators with its weights, read without torch and without a pickle."""
