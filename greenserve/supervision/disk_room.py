"""Says which of the product's disks take nothing any more: they are full, or read-only."""

from __future__ import annotations

import os
from pathlib import Path

from greenserve import env
from greenserve.servers import server_folders
from greenserve.supervision.preflight import LEAST_FREE_BYTES

FULL_SHARE = 0.03  # of a small disk, free: full, though it never has LEAST_FREE_BYTES


def faults(config: env.Env) -> list[str]:
    """Returns a sentence for each disk that takes nothing, with the folders that lie on it."""
    disks: dict[int, list[Path]] = {}
    for folder in _folders(config):
        try:
            disks.setdefault(os.stat(folder).st_dev, []).append(folder)
        except OSError:
            continue  # it is not there yet, or not ours to look into
    found = ((folders, _fault(folders[0])) for folders in disks.values())
    return [f"The disk of {', '.join(map(str, folders))} {fault}" for folders, fault in found if fault]


def _folders(config: env.Env) -> list[Path]:
    """Returns where journals, spools, logs, reports, databases and all else lie: each may have a disk of its own.

    Files of feeds are only read: their disk may be as it likes.
    """
    var_dir = config.var_dir
    own = sorted(path for path in var_dir.iterdir() if path.is_dir()) if var_dir.is_dir() else []
    own = [path for path in own if path.name != "feeds"]
    database = [] if config.database_url else [server_folders.folders_of(var_dir).postgres_home]
    return list(dict.fromkeys([var_dir, *own, *database]))


def _fault(folder: Path) -> str:
    try:
        room = os.statvfs(folder)
    except OSError as error:
        return f"fails: {error.strerror}"
    if room.f_flag & os.ST_RDONLY:
        return "is read-only: mount it for writing"
    free_bytes, size_bytes = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    if free_bytes < min(LEAST_FREE_BYTES, FULL_SHARE * size_bytes):
        return f"is full, with {free_bytes / 1e6:.0f} MB free: make room there"
    return ""
