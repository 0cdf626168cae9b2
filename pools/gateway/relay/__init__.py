"""A call from its place to its end: attempts, bytes relayed as they come, several engines that generate one stream."""
