"""SQL of migrations and triggers."""
