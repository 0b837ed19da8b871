"""Cases that devices upload through the fleet service, or to object storage with URLs that it signs."""
