"""`upwell policy collect`: records the answers of device and cloud to the same items, for calibration and
simulation.
"""
