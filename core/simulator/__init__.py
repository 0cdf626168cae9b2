"""The product's controllers against simulated instances, far faster than real time."""
