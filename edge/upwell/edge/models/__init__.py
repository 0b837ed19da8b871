"""The models that the agent serves: their files and runtimes on the device, and their models in the cloud."""
