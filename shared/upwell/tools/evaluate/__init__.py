"""`upwell evaluate`: compares two models on the randomly sampled cases."""
