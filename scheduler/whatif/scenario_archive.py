"""A draft as the files that `greenserve simulate scenario.yaml` reads, in a folder or as one zip."""

from __future__ import annotations

import io
import zipfile

from .fleet_scenario import Draft
from .scenario_documents import text_of

NAME = "scenario.yaml"


def files(made: Draft) -> dict[str, bytes]:
    """Returns the scenario, with its notes as comments, and the files that it names."""
    notes = "".join(f"# {note}\n" for note in made.notes)
    return {NAME: (notes + text_of(made.document)).encode(), **made.files}


def zipped(made: Draft) -> bytes:
    """Returns the files as a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files(made).items():
            archive.writestr(name, data)
    return buffer.getvalue()
