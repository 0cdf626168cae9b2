"""Carbon intensity and prices: feeds, and what holds at a site at a moment."""
