"""Which requests go now and where to, and which wait: routing, lines, admission, clocks, emergencies, splits."""
