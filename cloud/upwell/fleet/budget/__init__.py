"""What the fleet may spend as a whole, shared among its devices. Pure."""
