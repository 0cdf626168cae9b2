"""Folders of the embedded servers of one `var` folder: data, sockets, and the packages that have their programs."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from greenserve.process import StartError, account_ids

STATE_DIR = Path("/var/lib/greenserve")  # of root's servers
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's own limit is 108 with the closing zero
SYSTEM_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class ServerFolders:
    """The folders and sockets of the servers of one `var` folder. Making this value creates none of them."""

    postgres_home: Path
    postgres_sockets: Path
    redis_data: Path
    redis_socket: Path
    length_socket: Path  # of the predictor of lengths

    @property
    def postgres_data(self) -> Path:
        return self.postgres_home / "data"


def folders_of(var_dir: Path) -> ServerFolders:
    var_dir = var_dir.resolve()
    tag = hashlib.sha256(os.fsencode(var_dir)).hexdigest()[:12]
    sockets = var_dir / "sockets"
    if len(os.fsencode(sockets / ".s.PGSQL.5432")) >= SOCKET_PATH_LIMIT:
        sockets = Path(f"/tmp/greenserve-{os.geteuid()}-{tag}")
    root = os.geteuid() == 0
    return ServerFolders(
        postgres_home=STATE_DIR / tag if root else var_dir / "postgres",
        postgres_sockets=STATE_DIR / tag / "sockets" if root else sockets,
        redis_data=var_dir / "redis",
        redis_socket=sockets / "redis.sock",
        length_socket=sockets / "lengths.sock",
    )


def own_folder(path: Path, account: str | None) -> None:
    """Makes `path` with mode 0700 for its owner. Raises StartError when it belongs to somebody else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if account and path.parent == STATE_DIR:
        STATE_DIR.chmod(0o755)  # ours; the account passes through it
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    uid, gid = account_ids(account) if account else (os.geteuid(), os.getegid())
    if path.is_symlink() or path.stat().st_uid not in (uid, os.geteuid()):
        raise StartError(f"{path} belongs to somebody else: move it away, or set GREENSERVE_VAR to another folder")
    if path.stat().st_uid != uid:
        os.chown(path, uid, gid)
    path.chmod(0o700)


def package_dir(name: str) -> Path:
    """Returns the folder of a package without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise StartError(
            f"the package {name.replace('_', '-')} is not installed: install GreenServe again, with its dependencies"
        )
    return Path(next(iter(found.submodule_search_locations)))
