"""Keeps what each call leaves: its record, on disk before its end is seen, its figures, its energy."""
