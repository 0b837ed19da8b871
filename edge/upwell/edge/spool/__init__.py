"""Cases stored on disk for the cloud, and its answers until they are delivered."""
