"""Adapters to providers of carbon intensity and prices."""
