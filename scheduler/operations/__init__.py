"""What people do: configure, pause, approve, override, undo; and what each may see."""
