"""Commands to rows, nodes and messages."""
