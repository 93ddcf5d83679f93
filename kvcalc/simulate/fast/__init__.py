"""A replica that jumps over the steps in which nothing is decided, held to the stepped one by a property test."""
