"""Which requests go now and where to, and which wait: routing, queues, admission, clocks, emergencies, splits."""
