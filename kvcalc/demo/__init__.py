"""Demonstrations of how inference works: one module each, with its computation, report, table, steps and charts."""
