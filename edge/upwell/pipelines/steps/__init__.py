"""The steps of a pipeline: what is done to a frame and its objects. Pure: time is an argument."""
