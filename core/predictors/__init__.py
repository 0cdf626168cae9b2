"""Forecasts: output lengths, load, carbon, and an engine's iterations a second."""
