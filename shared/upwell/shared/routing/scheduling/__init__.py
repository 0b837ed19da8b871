"""What the device runs next: who is taken on, in which order, and who gives way. Pure; time is an argument."""
