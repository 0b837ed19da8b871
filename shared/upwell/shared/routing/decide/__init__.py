"""The router: decisions, learning from outcomes, and explanations."""
