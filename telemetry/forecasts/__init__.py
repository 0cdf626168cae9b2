"""Forecasts of carbon and load, and how good they were."""
