"""Which instances for which load: integer programs, searches and bounds."""
