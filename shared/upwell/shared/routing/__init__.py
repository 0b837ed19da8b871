"""Routing as pure functions of signals, policy and what was learnt from past outcomes."""
