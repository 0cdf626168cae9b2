"""Decides what stands on which GPUs, and how weights move from one layout to the next."""
