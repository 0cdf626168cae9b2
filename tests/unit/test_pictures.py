"""The documents' pictures: each that is named lies there, and each that lies there is named."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"pictures/([\w.-]+\.(?:png|svg))")


def test_each_picture_is_named_and_there_when_documents_are_read() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for document in documents for name in NAMED.findall(document.read_text())}
    there = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    assert there - named == set(), "no document shows these"
    assert named - there == set(), "take them: pytest tests/browser --pictures"
