"""Django's template tags."""
