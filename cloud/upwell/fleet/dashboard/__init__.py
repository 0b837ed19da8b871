"""Pages for people: the fleet, its devices and roll-outs, on the data of the REST interface."""
