"""engine predict, model, facts and import: the engine model by itself, without database, Redis or Django; publish."""
