"""Steps that decide about single requests: where to, when, and whether at all."""
