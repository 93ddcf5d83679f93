"""The explorer: a local page with sliders over the same numbers as the command line."""
