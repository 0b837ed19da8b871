"""`upwell doctor`: what is installed, what works, and what will stop working, as one report to paste."""
