"""Estimates of the link, the cloud and the device, and of what may still be spent."""
