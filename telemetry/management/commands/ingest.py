from __future__ import annotations

import gc
import logging
import signal
from threading import Event, Thread
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils.module_loading import import_string

from pools import redis_address
from pools.registration.worker_hosts import WorkerHosts
from telemetry.ingest.ingester import Ingester
from telemetry.ingest.scraper import RegisteredEngines, metrics_with


class Command(BaseCommand):
    help = "Reads samples and request records from the Redis streams into PostgreSQL until it gets SIGTERM."

    def handle(self, *args: Any, **options: Any) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        # Rows are made by the thousand, hold no cycles and go at once: collecting among them takes longer than they do.
        gc.freeze()
        gc.set_threshold(100_000, 50, 50)
        stop = Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        client = redis_address.connect(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
        metrics = metrics_with(settings.ENV.engine_authority, settings.ENV.worker_key_file)
        registered = RegisteredEngines(client, WorkerHosts(settings.GREENSERVE_WORKER_HOSTS), metrics)
        measuring = Thread(target=registered.run, args=(stop,), name="registered engines")
        measuring.start()
        try:
            Ingester(client, import_string(settings.GREENSERVE_CLOCK_DECISION_SINK)).run(stop)
        finally:
            stop.set()
            measuring.join(timeout=5.0)
