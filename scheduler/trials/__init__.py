"""Trials: two policies take turns on a live service, and what was metered of each is compared."""
