from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from pools import demo
from pools.models import Gpu, Node, Site


class Command(BaseCommand):
    help = "Loads the demo fleet: three simulated sites serving Llama3-70B. Creates what is missing, changes nothing."

    def handle(self, *args: Any, **options: Any) -> None:
        service = demo.load()
        demo.load_rates()
        demo.load_profile()
        counts = f"{Site.objects.count()} sites, {Node.objects.count()} nodes, {Gpu.objects.count()} GPUs"
        self.stdout.write(f"demo fleet loaded: {counts}, service {service.name}")
