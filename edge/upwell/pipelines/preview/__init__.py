"""The preview: a page that shows what each pipeline sees, does and drops."""
