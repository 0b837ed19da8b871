"""`upwell release`: makes, signs, publishes and checks releases of bundles, policy and pipelines."""
