"""Where a request goes and why: pure functions of signals, policy and what was seen so far."""
