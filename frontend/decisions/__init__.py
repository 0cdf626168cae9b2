"""A decision for people: its facts, and what came of it."""
