"""A list and a page for each kind of thing in the fleet."""
