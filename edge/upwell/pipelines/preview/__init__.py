"""The preview: a page with what each pipeline sees, does and drops."""
