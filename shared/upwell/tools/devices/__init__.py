"""What the accelerators of this machine really do, found out by trying them."""
