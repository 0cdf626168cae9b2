"""Reads a fleet that runs without GreenServe: from metrics to energy, attainment and modelled savings."""
