"""Files of benchmark tools and servers' metrics, as records."""
