"""What-if: studies in the simulator, as pages."""
