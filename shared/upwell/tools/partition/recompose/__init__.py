"""The device's part of splitting a model: running halves to measure and to check them."""
