"""What the accelerators of this machine can really do, found by trying them."""
