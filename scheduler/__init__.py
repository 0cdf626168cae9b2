"""Decides: runs the control loops on the live fleet, what people override, what-if studies and batches."""
