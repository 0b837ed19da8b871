"""The way to the cloud: channel life, deadlines, cancelling, and the guard where bytes leave the device."""
