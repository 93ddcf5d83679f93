"""Models from a checkpoint's own files."""
