"""The slow loops: snapshot, step, one transaction of state, rows and reasons, then what agents are told."""
