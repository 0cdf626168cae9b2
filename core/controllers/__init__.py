"""Every decision as a step: state and observation in, state and effects out."""
