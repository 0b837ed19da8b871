"""How a device joins the fleet, and how it proves its membership."""
