"""Splitting a model across tiers: its graph, its costs, the optimal plan, and the halves."""
