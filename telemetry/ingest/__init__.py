"""From agents' and gateways' streams, and from engines' metrics, to tables and their roll-ups."""
