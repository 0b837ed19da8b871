"""What runs models in the cloud."""
