"""What is expected of carbon and load, and how good that was."""
