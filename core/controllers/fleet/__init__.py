"""Steps that decide instances: sites, partitions, counts and TP degrees."""
