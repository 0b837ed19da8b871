"""What is done to a frame and to the objects on it, step by step. Pure: an instant is an argument."""
