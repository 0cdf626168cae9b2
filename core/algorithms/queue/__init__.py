"""In which order requests are served, and how many at once."""
