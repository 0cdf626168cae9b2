"""Pure: the engine model, what controllers decide and the simulator. Knows no Django, Celery, Redis, HTTP or NVML."""
