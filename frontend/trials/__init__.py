"""Trials as pages: the list, the plan of a new one, and what it has shown."""
