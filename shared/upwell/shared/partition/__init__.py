"""Splitting a model across tiers: its graph, what it costs, the exact plan, and the halves."""
