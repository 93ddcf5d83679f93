"""Deployments under load: steady state from step times, and the simulator's word on the best of them."""
