"""Carbon intensity and prices: feeds, and what is valid at a site at a moment."""
