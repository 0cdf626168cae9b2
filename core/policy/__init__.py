"""Policies by name: presets and their knobs, and request classes."""
