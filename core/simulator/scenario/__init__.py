"""Scenario files as values: services, classes, sites, a fleet and its policy."""
