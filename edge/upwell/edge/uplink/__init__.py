"""The way to the cloud: connections, deadlines, cancellation, and the check where bytes leave the device."""
