"""Cases that devices bring home through the fleet service, or by addresses of object storage that it signs."""
