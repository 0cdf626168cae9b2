"""Knows the fleet in memory: services, keys, instances; and workers that register themselves."""
