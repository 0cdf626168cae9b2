"""Measures: samples and requests, the energy ledger, carbon and prices, forecasts, alerts and reports."""
