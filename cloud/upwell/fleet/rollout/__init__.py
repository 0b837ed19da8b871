"""A roll-out: waves of devices, a gate between them, and the way back. Pure: no clock, no database, no network."""
