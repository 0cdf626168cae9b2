"""A run from its scenario to its figures, here or in another process."""
