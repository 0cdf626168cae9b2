"""Builds what the loops of a fleet are given: the first plan, scale and shard."""
