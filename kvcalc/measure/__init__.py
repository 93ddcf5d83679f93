"""Rates of a machine, and a real decode loop to hold predictions against. The only layer that knows torch."""
