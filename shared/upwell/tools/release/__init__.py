"""`upwell release`: making, signing, publishing and checking releases of bundles, policy and pipelines."""
