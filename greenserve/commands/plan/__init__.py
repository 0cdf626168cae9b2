"""plan: carbon epochs solved from files."""
