"""The web process's `/metrics`: the fleet's figures, and what the processes without a listener of their own report."""
