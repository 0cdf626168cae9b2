"""A request's body and its answer: read, checked, measured; and the call that it becomes."""
