"""What the fleet may spend as a whole, shared out among its devices. Pure."""
