"""How the schema came to be what it is, step by step; applied when the service starts."""
