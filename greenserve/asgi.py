"""The dashboard and REST API as an ASGI application."""

import gc
import os
from importlib import import_module

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")

from greenserve.body_limits import BodyLimits

application = BodyLimits(get_asgi_application())

from django.conf import settings  # noqa: E402

from greenserve import celery  # noqa: E402 - reads the settings

celery.app.set_default()  # what pages send goes to our workers, from whatever thread

# What is loaded stays, and need not be looked through for garbage: else one page in ten or so, whose request happens to
# set off a full collection, takes 0.15 s longer.
import_module(settings.ROOT_URLCONF)
gc.collect()
gc.freeze()
