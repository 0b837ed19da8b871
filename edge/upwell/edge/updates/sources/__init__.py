"""Where new versions of a bundle come from: a folder, an HTTPS server or an OCI registry."""
