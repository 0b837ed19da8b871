"""The flight recorder: why each of the last requests was answered as it was, and `upwell explain`."""
