"""The truth board: the engine model, frozen, against measured tables."""
