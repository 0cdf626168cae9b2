"""Alerts: what the page shows, and what people do there."""
