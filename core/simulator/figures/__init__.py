"""Computes latencies, joules, grams, costs and fairness from requests and instances."""
