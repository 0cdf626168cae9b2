"""Alerts: rules are values and functions of values; a task reads what they judge, keeps the rows, and tells people."""
