"""The clock loop of a node: rules, requests from gateways, leases, and the log of decisions."""
