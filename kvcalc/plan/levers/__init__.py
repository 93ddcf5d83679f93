"""Ways to shrink the cache, counted by the same formulas as the model itself."""
