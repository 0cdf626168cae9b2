"""Tenants: what each used, emitted and cost this month, by settled figures; its budget and what the month comes to."""
