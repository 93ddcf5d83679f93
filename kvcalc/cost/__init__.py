"""The formulas: cache, parameters, linear layers, attention, collectives, the forward pass, the roofline."""
