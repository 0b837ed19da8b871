"""Cases kept on disk for the cloud, and its answers to them until they have been taken."""
