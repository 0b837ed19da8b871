"""The router's state and its lock, the policy file, budgets on disk."""
