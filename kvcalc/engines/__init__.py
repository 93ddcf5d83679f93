"""How engines lay the cache out: what they reserve, beside what the tokens need."""
