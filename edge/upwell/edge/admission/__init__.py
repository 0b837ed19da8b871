"""Who is let in, and who runs on the device when."""
