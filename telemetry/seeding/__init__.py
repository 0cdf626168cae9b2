"""The demo's past: a day that the engine model made up, repeated, entered in the ledger and marked as synthetic."""
