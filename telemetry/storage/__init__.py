"""How tables are written fast and kept small: COPY, partitions, and the SQL of triggers."""
