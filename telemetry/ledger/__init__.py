"""Every joule of every counter entered once, then settled: whose it was, what it emitted and cost."""
