"""Predictions held against what people measured, and estimates fitted to it."""
