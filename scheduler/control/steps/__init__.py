"""Which steps a service's policy runs, fed from the database."""
