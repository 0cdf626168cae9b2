"""Writes tables fast and keeps them small: COPY, partitions, and the SQL of triggers."""
