"""A node's host energy behind its port: RAPL by powercap or zeusd, the baseboard controller, declared power."""
