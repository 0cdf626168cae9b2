"""The weather of sites: where it comes from, and what is known of it, for forecasts of carbon."""
