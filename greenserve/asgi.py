"""The dashboard and REST API as an ASGI application."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")

application = get_asgi_application()

from greenserve import celery  # noqa: E402 - reads the settings

celery.app.set_default()  # what pages send goes to our workers, from whatever thread
