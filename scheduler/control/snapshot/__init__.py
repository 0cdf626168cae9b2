"""Rows to observations."""
