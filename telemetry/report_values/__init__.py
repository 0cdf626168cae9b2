"""A report as values: what is asked for, lines, totals, tables. Pure."""
