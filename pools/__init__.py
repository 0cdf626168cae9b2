"""Serves: the fleet's tables, the gateway, the agents, the profiler and simulated nodes."""
