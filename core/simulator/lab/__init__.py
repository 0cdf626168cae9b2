"""The laboratory: what papers published against what their systems do in the simulator, and a bound for all of them."""
