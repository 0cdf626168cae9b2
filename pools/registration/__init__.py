"""How machines and engines join the fleet."""
