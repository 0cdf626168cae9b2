"""Builds what is given at each request: to routing, to splits and to engines."""
