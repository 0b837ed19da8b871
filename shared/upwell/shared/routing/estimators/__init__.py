"""What is believed of the link, the cloud, the device, and of what may still be spent."""
