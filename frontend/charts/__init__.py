"""Frames to Plotly figures and to CSV. Pure."""
