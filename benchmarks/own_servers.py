"""PostgreSQL and Redis of a benchmark's own, migrated, with Django set up on them; gone afterwards unless kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PREFIX = "greenserve-bench-"


@contextmanager
def own_servers(*, durable: bool = True, keep: Path | None = None) -> Iterator[None]:
    """For a process that has not set up Django yet. `durable`: writes reach the disk, as they do in production.

    `keep`: the folder whose data stay for the next run, which is migrated anew; else all is gone afterwards.
    """
    from greenserve.servers import embedded
    from tests import servers

    with ExitStack() as stack:
        var_dir = keep.resolve() if keep else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
        var_dir.mkdir(parents=True, exist_ok=True)
        os.environ |= {
            "GREENSERVE_VAR": str(var_dir),
            "DATABASE_URL": embedded.owner_url(var_dir),
            "REDIS_URL": embedded.redis_url(var_dir),
            "DJANGO_SETTINGS_MODULE": "greenserve.settings",
        }
        try:
            with servers.running(var_dir, durable=durable):
                import django
                from django.core.management import call_command

                django.setup()
                call_command("migrate", verbosity=0)
                yield
                django.db.connections.close_all()
        finally:
            if keep is None:
                servers.remove(var_dir)
