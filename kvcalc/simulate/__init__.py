"""Simulations: what formulas cannot tell, computed step by step. Pure: no files, no terminal."""
