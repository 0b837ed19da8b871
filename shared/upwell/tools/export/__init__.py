"""`upwell model export-jax`: a torch model as a jax.export artifact."""
