"""What an engine does: iterations, profiles, rates, the time that changes take; and published facts beside it."""
