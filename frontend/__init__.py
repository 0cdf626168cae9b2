"""Shows: the dashboard's pages and the REST API."""
