"""What a controller's step is given, for every world, and how it is recorded."""
