"""Says what comes to the classes of a service, and what its sites are about to cost."""
