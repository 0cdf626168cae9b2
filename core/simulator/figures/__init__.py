"""From requests and instances to latencies, joules, grams, costs and fairness."""
