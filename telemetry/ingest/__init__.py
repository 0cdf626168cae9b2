"""Writes agents' and gateways' streams, and engines' metrics, to tables and their roll-ups."""
