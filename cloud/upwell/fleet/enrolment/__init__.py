"""How a device comes to belong to the fleet, and how it proves that it does."""
