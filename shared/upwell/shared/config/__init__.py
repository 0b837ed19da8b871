"""Configuration files: YAML with positions, addresses, and sections that both sides share."""
