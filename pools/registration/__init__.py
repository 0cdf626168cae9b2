"""Lets machines and engines join the fleet."""
