"""Decides who may do what, and records who did what."""
