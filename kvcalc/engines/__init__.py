"""Memory models of engines: the bytes they reserve, beside those that the tokens need."""
