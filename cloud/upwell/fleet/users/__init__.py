"""The people who look and act, and the record of what they did."""
