"""HTTP/1.1 on both sides: framing, limits, back-pressure, pooled connections, and what is done once a turn."""
