"""Predicts what a request will take: its prompt's tokens, its answer's, and so its class; and learns of each."""
