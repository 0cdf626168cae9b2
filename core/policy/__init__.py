"""Policies by name: presets, their knobs and tuning, and request classes."""
