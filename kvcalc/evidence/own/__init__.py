"""A user's own measurements: what they were of, a calibration fitted to them, and where their time went."""
