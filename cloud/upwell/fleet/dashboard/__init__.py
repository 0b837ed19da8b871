"""Pages for people: the fleet, its devices and roll-outs, on what the REST interface knows, too."""
