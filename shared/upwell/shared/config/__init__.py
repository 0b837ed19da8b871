"""Files that users write: YAML with positions, addresses, sections that both sides have."""
