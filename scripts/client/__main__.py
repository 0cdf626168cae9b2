"""Writes the client's modules, or says with `--check` which of them are not as the API is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .document import Document
from .models import models
from .python_types import Names
from .resources import Writer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "greenserve" / "client"
TIMEOUT_S = 60


def made(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns each module's text by its name."""
    read = Document(document)
    names = Names(read)
    texts = {
        "models.py": models(read, names),
        "resources.py": Writer(read, names, asynchronous=False).module(),
        "async_resources.py": Writer(read, names, asynchronous=True).module(),
    }
    return {name: _formatted(text, name) for name, text in texts.items()}


def behind(document: Mapping[str, Any]) -> list[str]:
    """Returns the modules that are not as the document says."""
    texts = made(document)
    return [name for name, text in texts.items() if not _same(FOLDER / name, text)]


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


def _formatted(text: str, name: str) -> str:
    """Returns the text as ruff formats it, without the imports that it does not need."""
    ruff = str(Path(sys.executable).parent / "ruff")
    path = str(FOLDER / name)
    for command in (["check", "--fix", "--quiet", "--select", "F401,I", "-"], ["format", "--quiet", "-"]):
        command = [ruff, *command[:-1], "--stdin-filename", path, "-"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"ruff refuses {name}: {done.stderr or done.stdout}")
        text = done.stdout
    return text


def document() -> Mapping[str, Any]:
    """Returns the API's OpenAPI document, made from the code; no database is needed."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")
    import django

    django.setup()
    from frontend.api.resources import documents

    found: Mapping[str, Any] = documents.document()
    return found


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m scripts.client [--check]\n")
        return 2
    if arguments:
        if old := behind(document()):
            sys.stderr.write(f"{', '.join(old)} of greenserve/client are not as the REST API is: run `make client`.\n")
        return bool(old)
    for name, text in made(document()).items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
