"""`upwell policy collect`: what device and cloud say to the same items, written down for calibration and simulation."""
