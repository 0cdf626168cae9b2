"""Records what later versions prove their upgrade by, into tests/fixtures/release_<version>/: once, at a release.

`python -m tests.fakes.release`, in a development environment (it starts servers of its own). docs/recipes.md has more.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests import servers

FIXTURES = Path(__file__).parents[2] / "fixtures"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="greenserve-release-") as folder:
        var_dir = Path(folder)
        (var_dir / "log").mkdir()
        os.environ |= {"GREENSERVE_VAR": folder, "DJANGO_SETTINGS_MODULE": "greenserve.settings"}
        try:
            with servers.running(var_dir, durable=False) as (database, redis):
                os.environ |= {"DATABASE_URL": database, "REDIS_URL": redis}
                _record(database)
        finally:
            servers.remove(var_dir)


def _record(database: str) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from greenserve.celery import app
    from tests.fakes.release import dumps, messages, rows

    app.set_current()
    to = FIXTURES / f"release_{version('greenserve').replace('.', '_')}"
    if (to / "dump.sql.gz").exists():
        raise SystemExit(f"{to} is there already: what a release left behind is not changed")
    to.mkdir(parents=True, exist_ok=True)
    call_command("migrate", verbosity=0, interactive=False)
    rows.fill()
    empty = [table for table, model in rows.tables().items() if not model._default_manager.exists()]
    if empty:
        raise SystemExit(f"no rows in {', '.join(empty)}: give them some in tests/fakes/release/rows.py")
    connections.close_all()
    dumps.write(database, to / "dump.sql.gz")
    (to / "messages.json").write_text(json.dumps(messages.recorded(), indent=1) + "\n")
    for path in sorted(to.iterdir()):
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
