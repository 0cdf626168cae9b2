"""The operations of people: they configure, pause, approve, override and undo; and what each person may see."""
