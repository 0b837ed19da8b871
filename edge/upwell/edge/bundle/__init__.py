"""Model bundles: a folder or one file with models, description, golden vectors, manifest and signature."""
