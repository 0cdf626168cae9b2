"""Decides where a request is cut in two, and composes batches."""
