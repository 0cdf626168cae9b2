"""Servers are switched off and on: the adapters of `core.ports.ServerPower`, and the loop that asks them."""
