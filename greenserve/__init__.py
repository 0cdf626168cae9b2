"""Runs: settings, the command line, the supervisor and embedded servers."""
