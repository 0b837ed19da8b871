"""Events of a pipeline: when one happens and what it says. Pure: time is an argument."""
