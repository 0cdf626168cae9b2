"""Chooses the SM clock: rules that follow latencies, and projections of batch and KV cache."""
