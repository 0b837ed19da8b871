"""Events of a pipeline: when one happens, and what is said about it. Pure: an instant is an argument."""
