"""Calibration while serving: windows of what engines and meters report, and the residuals that follow from them."""
