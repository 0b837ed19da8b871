"""Admission of requests and the order of their runs on the device."""
