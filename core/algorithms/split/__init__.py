"""Where a request is cut in two, and what a batch holds."""
