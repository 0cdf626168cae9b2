"""Steps that decide the SM clocks of an instance's GPUs."""
