"""Decides which requests go now and where to: routing, queues, admission, clocks, emergencies, splits."""
