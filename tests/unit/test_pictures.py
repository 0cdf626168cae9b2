"""The documents' pictures: each that is shown lies there, and each that lies there is shown."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"!\[[^\]]+\]\((?:docs/)?pictures/([\w.-]+)\)")
AT_MOST_MB = 2.5


def test_each_picture_is_shown_and_there_when_documents_are_read() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for document in documents for name in SHOWN.findall(document.read_text())}
    there = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    assert there - shown == set(), "no document shows these"
    assert shown - there == set(), "take them: pytest tests/browser --pictures"


def test_pictures_stay_small_when_they_are_taken() -> None:
    size_mb = sum(path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()) / 1e6
    assert size_mb < AT_MOST_MB, "every clone carries them, and each one that was ever taken"
