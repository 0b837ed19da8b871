"""The models that the agent serves: files on the device, their runtimes and the cloud models beside them."""
