"""Forms of everything that an operator owns, and what people override."""
