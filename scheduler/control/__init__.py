"""The slow loops: each makes a snapshot, takes a step, stores its result in one transaction, and publishes it."""
