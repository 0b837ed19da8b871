"""The device's side of a fleet: it polls a service, says how it fares, and is told which release to run. No more."""
