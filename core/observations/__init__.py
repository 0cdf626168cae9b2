"""The values that a controller's step is given, for every world, and their recording."""
