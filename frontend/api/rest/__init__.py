"""What all resources share: rights, limits, pages, filters, errors, the OpenAPI document."""
