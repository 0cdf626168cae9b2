"""Reads what a model's own files say of it."""
