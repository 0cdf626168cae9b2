"""ESRS E1: datapoints of E1-5 and E1-6 for a sustainability statement, each with its sources."""
