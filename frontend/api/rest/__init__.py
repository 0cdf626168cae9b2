"""Shared parts of all resources: rights, limits, pages, filters, errors, the OpenAPI document."""
