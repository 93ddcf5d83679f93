"""Profile files: finding, reading, validating and writing them."""
