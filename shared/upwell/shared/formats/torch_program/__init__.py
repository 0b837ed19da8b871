"""Programs of torch.export: a graph of ATen operators with weights, read without torch and without unpickling."""
