"""Orders of queues, and limits on how many requests run at once."""
