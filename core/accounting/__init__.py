"""Whole joules: counters split by use, shared out among requests, and valued by tariffs and embodied carbon."""
