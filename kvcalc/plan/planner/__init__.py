"""Deployments for a traffic: the search space, bounds that rule out, prices, and what is best of several things."""
