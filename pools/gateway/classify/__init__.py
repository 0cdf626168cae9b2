"""What a request will take: its prompt's tokens, its answer's, and so its class; and what is learned of it."""
