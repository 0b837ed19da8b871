"""Conversion between messages and tensors."""
