"""Algorithms of the papers, without state, each with its equation."""
