"""The device's side of a fleet: it polls a service, reports its health, and learns which release to run."""
