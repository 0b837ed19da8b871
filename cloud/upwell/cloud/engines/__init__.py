"""The engines that run models in the cloud."""
