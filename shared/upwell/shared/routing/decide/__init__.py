"""The router: one decision, what it learns, why it decided so."""
