"""The only reader of the environment. A bad value stops start-up and says which variable and what would do."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from core.units import ms_to_s
from greenserve import mail, oidc
from pools import redis_address, redis_safety
from pools.agent.devices.host.polled_power import DeclaredPowerMeter
from pools.gateway.http import connection_options
from pools.gateway.http.connections import networks
from pools.masking import passwords
from pools.registration.worker_hosts import PRIVATE, WorkerHosts
from telemetry.providers.addresses import host_fault
from telemetry.providers.secrets import Secret, SecretsError, gather

ROOT = Path(__file__).resolve().parent.parent  # of the packages: a checkout, or an environment's site-packages
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
LEAST_TOKEN = 16  # characters
SECRETS = "secrets"  # the folder of keys and passwords that GreenServe makes for itself
MAY_HOLD_SECRETS = re.compile(
    r"(DATABASE|REDIS|BROKER)_URL|PGPASSWORD|"
    r"GREENSERVE_\w*(TOKEN|PASSWORD|USER|SECRETS?|KEY|EMAIL_URL|WEBHOOK_URL|OWNER_URL)"
)
PERCENT = "; of a password write what is neither letter nor digit as %XX"
OWNER_URL = "GREENSERVE_DATABASE_OWNER_URL"
PROCESSES = (
    "web",
    "gateway",
    "picker",
    "lengths",
    "beat",
    "epochs",
    "simulations",
    "batches",
    "ingester",
    "node",
    "simnode",
)
SHARED = ("DATABASE_URL", "REDIS_URL", "GREENSERVE_SECRET_KEY")  # of all control planes on one database
T = TypeVar("T")


class BadEnvironment(SystemExit):
    """A variable that cannot be used; its text is the one line the operator sees."""


@dataclass(frozen=True, slots=True)
class Env:
    var_dir: Path
    database_url: str | None = field(repr=False)  # None: embedded PostgreSQL
    redis_url: str | None = field(repr=False)  # None: embedded Redis
    secret_key: str = field(repr=False)
    debug: bool
    web_host: str
    web_port: int
    gateway_host: str
    gateway_port: int
    gateway_processes: int  # that share the port
    picker_host: str
    picker_port: int | None  # None: no endpoint picker
    picker_metrics_port: int | None  # None: nobody can ask for its metrics
    worker_token: str | None = field(repr=False)  # with which workers register themselves; None: they cannot
    worker_hosts: str  # where they may be
    demo: bool
    demo_speedup: float
    demo_days: int  # of synthetic history that the demo begins with; 0: none
    demo_rps: float  # mean rate of the demo's own traffic; 0: none
    log_level: str
    simulated_host: str | None = None  # NAME:WATTS of each simulated node's host; None: it has none
    feeds_dir: Path | None = None  # the files that feeds may read; None: feeds/ in var_dir
    carbon_hosts: frozenset[str] = frozenset()  # mirrors of carbon providers that feeds may name
    carbon_secrets: Mapping[str, Secret] = field(default_factory=dict)  # by variable
    mail_server: mail.MailServer | None = None  # None: nothing is mailed
    mail_from: str = "greenserve@localhost"
    alert_emails: tuple[str, ...] = ()  # who is notified of alerts
    alert_webhook_url: Secret | None = None  # its path may be one
    alert_webhook_secret: Secret | None = None
    alert_webhook_private: bool = False  # it may lie at a private address
    webhook_hosts: frozenset[str] = frozenset()  # at private addresses, to which webhooks may go all the same
    media_hosts: str = ""  # where engines may fetch what a client names; empty: nowhere
    pass_fields: str = ""  # of clients' bodies, to engines, beside the usual ones
    gateway_limits: Mapping[str, int] = field(default_factory=dict)  # by option of the gateway's, in each process
    length_budget_s: float = 0.05  # that a request waits for the predictor of lengths; 0: it does not run
    gateway_proxies: str = connection_options.PROXIES  # in front of the gateway, who carry many clients
    metrics_token: Secret | None = None  # None: metrics are for this machine alone
    metrics_host: str = "127.0.0.1"  # where agents listen for Prometheus
    otlp_url: str | None = None  # None: no traces
    session_hours: float = 12.0  # how long a sign-in lasts at most
    session_idle_minutes: float = 60.0  # and without its person doing anything
    organisation: str = "GreenServe"  # who issues reports
    database_owner_url: str | None = field(default=None, repr=False)  # who migrates; None: the same as works
    join_token: Secret | None = None  # with which this machine joins a fleet
    redis_insecure: bool = False  # a Redis over TCP without a password or TLS is taken, too
    patched_servers: tuple[str, ...] = ()  # versions of servers that are patched though their number is too low
    engine_authority: Path | None = None  # who may sign certificates of engines; None: whom the system trusts
    worker_key_file: Path | None = None  # what workers that register themselves ask for; None: nothing
    api_url: str | None = None  # of the dashboard whose REST API commands use; None: this machine's
    api_token: Secret | None = None  # a person's access token for it
    https: bool = False  # people come by https
    proxies: int = 0  # of ours that stand before the web process and append to X-Forwarded-For
    web_names: tuple[str, ...] = ()  # of the host, in people's browsers
    public_url: str | None = None  # of the dashboard, for other machines; None: derived from where it listens
    oidc: oidc.OidcProvider | None = None  # None: people sign in by password alone
    plane: str = ""  # the name of this control plane, of several on one database; empty: the only one, or the first
    nodes_host: str = "127.0.0.1"  # where nodes reach us by TLS
    join_port: int | None = None  # None: machines join through the dashboard's own address
    relay_port: int | None = None  # None: nodes of this machine alone reach the embedded Redis

    @property
    def work_dir(self) -> Path:
        """Returns where processes run. Never in site-packages, which would come before the standard library."""
        return ROOT if in_checkout() else self.var_dir

    @property
    def secrets_dir(self) -> Path:
        """Returns the folder of keys and passwords that GreenServe makes for itself."""
        return self.var_dir / SECRETS

    @property
    def secrets(self) -> list[str]:
        """Returns what nobody may see: keys, tokens, and the passwords of addresses."""
        addresses = (self.database_url, self.database_owner_url, self.redis_url)
        hidden = [*self.carbon_secrets.values(), self.alert_webhook_url, self.alert_webhook_secret, self.metrics_token]
        hidden += [
            self.api_token,
            self.join_token,
            self.mail_server.password if self.mail_server is not None else None,
            self.oidc.client_secret if self.oidc is not None else None,
        ]
        return [
            *(word for address in addresses for word in passwords(address)),
            *(secret.reveal() for secret in hidden if secret is not None),
            *(word for word in (self.secret_key, self.worker_token) if word),
        ]


def in_checkout() -> bool:
    """Says whether this runs from the repository; else it was installed from a wheel."""
    return all((ROOT / name).is_file() for name in ("manage.py", "pyproject.toml"))


def _usual_var_dir(values: Mapping[str, str]) -> Path:
    """Returns `var/` of a checkout; of an installed product the account's folder, whatever folder it is started in."""
    if in_checkout():
        return ROOT / "var"
    data_home = values.get("XDG_DATA_HOME", "").strip()
    if data_home.startswith("/"):  # of another it is said not to count
        return Path(data_home) / "greenserve"
    try:
        return Path.home() / ".local" / "share" / "greenserve"
    except RuntimeError:
        raise BadEnvironment(
            "greenserve: this account has no home folder to keep data in: set GREENSERVE_VAR to a folder of yours"
        ) from None


def read(source: Mapping[str, str] | None = None) -> Env:
    """Reads and checks every variable. Raises BadEnvironment with one line that names the variable and the remedy."""
    values = os.environ if source is None else source

    def get(name: str, default: T, parse: Callable[[str], T], remedy: str) -> T:
        raw = values.get(name, "").strip()
        if not raw:
            return default
        try:
            return parse(raw)
        except ValueError:
            raise BadEnvironment(f"greenserve: {name}={raw!r} cannot be used: {remedy}") from None

    https, proxies = _https(get)
    owner_url = _hidden(values, OWNER_URL, _server("postgres", "postgresql"), f"write it as DATABASE_URL{PERCENT}")
    if owner_url and not values.get("DATABASE_URL", "").strip():
        raise BadEnvironment(
            f"greenserve: {OWNER_URL} cannot be used alone: set DATABASE_URL, or leave both out for the embedded "
            "PostgreSQL, which makes its two roles itself"
        )
    var_dir = (get("GREENSERVE_VAR", None, Path, "give a folder") or _usual_var_dir(values)).absolute()
    return Env(
        var_dir=var_dir,
        database_url=_hidden(
            values,
            "DATABASE_URL",
            _server("postgres", "postgresql"),
            f"write postgresql://user:password@host:port/name, or leave it out for the embedded PostgreSQL{PERCENT}",
        ),
        redis_url=_hidden(
            values,
            "REDIS_URL",
            _redis,
            f"write redis://host:port/0, unix:///path or sentinel://host1:26379,host2:26379/SERVICE?db=0, or leave it "
            f"out for the embedded Redis{PERCENT}",
        ),
        secret_key=get("GREENSERVE_SECRET_KEY", "", str, "give a long random text") or _secret_key(var_dir),
        debug=get("GREENSERVE_DEBUG", False, _flag, "write 1 or 0"),
        web_host=get("GREENSERVE_WEB_HOST", "127.0.0.1", str, "give an address to listen on"),
        web_port=get("GREENSERVE_WEB_PORT", 8000, _port, "give a port between 1 and 65535"),
        gateway_host=get("GREENSERVE_GATEWAY_HOST", "127.0.0.1", str, "give an address to listen on"),
        gateway_port=get("GREENSERVE_GATEWAY_PORT", 8080, _port, "give a port between 1 and 65535"),
        gateway_processes=get("GREENSERVE_GATEWAY_PROCESSES", 1, _count(64), "give a number between 1 and 64"),
        picker_host=get("GREENSERVE_PICKER_HOST", "127.0.0.1", str, "give an address to listen on"),
        picker_port=get("GREENSERVE_PICKER_PORT", None, _port, "give a port between 1 and 65535"),
        picker_metrics_port=get("GREENSERVE_PICKER_METRICS_PORT", None, _port, "give a port between 1 and 65535"),
        worker_token=get("GREENSERVE_WORKER_TOKEN", None, _token, ""),
        worker_hosts=get(
            "GREENSERVE_WORKER_HOSTS",
            PRIVATE,
            _hosts,
            "give addresses, networks, names, *.domains or 'private', with commas between",
        ),
        media_hosts=get(
            "GREENSERVE_MEDIA_HOSTS",
            "",
            _hosts,
            "give addresses, networks, names, *.domains or 'private', with commas between",
        ),
        pass_fields=get(
            "GREENSERVE_PASS_FIELDS", "", _fields, "give names of fields, or vllm_xargs.NAME, with commas between"
        ),
        gateway_limits={
            option.name: get(option.variable, option.default, option.parse, f"give a number {option.range}")
            for option in connection_options.OPTIONS
        },
        length_budget_s=ms_to_s(
            get("GREENSERVE_LENGTH_BUDGET_MS", 50.0, _number(0, 1000), "give milliseconds between 0 and 1000")
        ),
        gateway_proxies=get(
            "GREENSERVE_GATEWAY_PROXIES",
            connection_options.PROXIES,
            _networks,
            "give addresses and networks with commas between, or 'none'",
        ),
        demo=get("GREENSERVE_DEMO", True, _flag, "write 1 or 0"),
        demo_speedup=get("GREENSERVE_DEMO_SPEEDUP", 30.0, _number(1, 1000), "give a number between 1 and 1000"),
        demo_days=get("GREENSERVE_DEMO_DAYS", 7, _count(31, 0), "give a number of days between 0 and 31"),
        demo_rps=get("GREENSERVE_DEMO_RPS", 3.0, _number(0, 1000), "give requests per second between 0 and 1000"),
        simulated_host=get(
            "GREENSERVE_SIMULATED_HOST", None, _declared_host, "write NAME:WATTS, such as 'processors and fans:450'"
        ),
        log_level=get("GREENSERVE_LOG_LEVEL", "INFO", _one_of(LOG_LEVELS), f"write one of {', '.join(LOG_LEVELS)}"),
        feeds_dir=get("GREENSERVE_FEEDS_DIR", None, _folder, "give the whole path of a folder, such as /srv/feeds"),
        carbon_hosts=get("GREENSERVE_CARBON_HOSTS", frozenset(), _names, "give names of hosts with commas between"),
        carbon_secrets=_carbon_secrets(values),
        mail_server=_hidden(values, "GREENSERVE_EMAIL_URL", mail.parse, mail.REMEDY),
        mail_from=get("GREENSERVE_EMAIL_FROM", "greenserve@localhost", _email, "give one e-mail address"),
        alert_emails=get("GREENSERVE_ALERT_EMAILS", (), _emails, "give e-mail addresses with commas between"),
        alert_webhook_url=_hidden(
            values,
            "GREENSERVE_ALERT_WEBHOOK_URL",
            _secret_url,
            "write https://host/path; plain http only with GREENSERVE_ALERT_WEBHOOK_PRIVATE=1",
        ),
        alert_webhook_secret=_hidden(
            values, "GREENSERVE_ALERT_WEBHOOK_SECRET", _secret, f"give at least {LEAST_TOKEN} letters and digits"
        ),
        alert_webhook_private=get("GREENSERVE_ALERT_WEBHOOK_PRIVATE", False, _flag, "write 1 or 0"),
        webhook_hosts=get(
            "GREENSERVE_WEBHOOK_HOSTS", frozenset(), _own_hosts, "give names or addresses of hosts with commas between"
        ),
        metrics_token=_hidden(
            values, "GREENSERVE_METRICS_TOKEN", _secret, f"give at least {LEAST_TOKEN} letters and digits"
        ),
        metrics_host=get("GREENSERVE_METRICS_HOST", "127.0.0.1", str, "give an address to listen on"),
        session_hours=get("GREENSERVE_SESSION_HOURS", 12.0, _number(0.25, 8760), "give hours between 0.25 and 8760"),
        session_idle_minutes=get(
            "GREENSERVE_SESSION_IDLE_MINUTES", 60.0, _number(1, 525_600), "give minutes between 1 and 525600"
        ),
        organisation=get("GREENSERVE_ORGANISATION", "GreenServe", _line(100), "give a name of at most 100 letters"),
        database_owner_url=owner_url,
        join_token=_hidden(values, "GREENSERVE_JOIN_TOKEN", _secret, "give a join token, whole"),
        redis_insecure=get(redis_safety.VARIABLE, False, _flag, "write 1 or 0"),
        patched_servers=get(
            "GREENSERVE_PATCHED_SERVERS",
            (),
            _server_versions,
            "write redis-7.0.15 or postgresql-15.18, with commas between",
        ),
        engine_authority=get("GREENSERVE_ENGINE_AUTHORITY", None, _file, "give the whole path of a PEM file"),
        worker_key_file=get("GREENSERVE_WORKER_KEY_FILE", None, _file, "give the whole path of a file with the key"),
        api_url=get("GREENSERVE_URL", None, _url("http://", "https://"), "write https://host of the dashboard"),
        api_token=_hidden(values, "GREENSERVE_TOKEN", _secret, "give a person's access token, whole"),
        https=https,
        proxies=proxies,
        web_names=get("GREENSERVE_WEB_NAMES", (), _web_names, "give names of this host with commas between"),
        public_url=get(
            "GREENSERVE_PUBLIC_URL", None, _origin, "write https://HOST or http://HOST:PORT, as other machines reach it"
        ),
        oidc=oidc.read(values, _hidden),
        plane=_plane(values, get),
        nodes_host=get("GREENSERVE_NODES_HOST", "127.0.0.1", str, "give an address to listen on"),
        join_port=get("GREENSERVE_JOIN_PORT", None, _port, "give a port between 1 and 65535"),
        relay_port=get("GREENSERVE_RELAY_PORT", None, _port, "give a port between 1 and 65535"),
        otlp_url=get(
            "GREENSERVE_OTLP_URL", None, _url("http://", "https://"), "write http://host:4318 (OTLP over HTTP)"
        ),
    )


def local_url(host: str, port: int) -> str:
    """Returns the URL at which this machine reaches a process that listens on `host`, which may mean all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not listened on
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def for_child(*, secrets: bool = True, owner: bool = False, **extra: str) -> dict[str, str]:
    """Returns the environment of a process that GreenServe starts: this one's, and `extra`.

    Without `secrets` it lacks each variable that may hold one, without `owner` the address of the database's owner.
    Numerical libraries would otherwise start a thread per core in each of some twenty processes.
    """
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    ours = {name: value for name, value in os.environ.items() if secrets or not MAY_HOLD_SECRETS.fullmatch(name)}
    if not owner:
        ours.pop(OWNER_URL, None)
    return {**threads, **ours, **extra}


def ours() -> dict[str, str]:
    """Returns the variables that GreenServe reads, as they are set; some are secrets."""
    names = ("DATABASE_URL", "REDIS_URL")
    return {name: value for name, value in os.environ.items() if name in names or name.startswith("GREENSERVE_")}


def keep_secret(path: Path, secret: str) -> Path:
    """Writes a secret where its owner alone can read it: a command line can be read by all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret)
    return draft.replace(path)


def find_program(name: str) -> Path | None:
    """Returns the program `name` on the PATH; system folders count too, which an ordinary user's PATH may lack."""
    for folder in [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin"]:
        path = Path(folder or ".") / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None


def _port(raw: str) -> int:
    number = int(raw)
    if not 1 <= number <= 65535:
        raise ValueError
    return number


def _count(most: int, least: int = 1) -> Callable[[str], int]:
    def parse(raw: str) -> int:
        number = int(raw)
        if not least <= number <= most:
            raise ValueError
        return number

    return parse


def _flag(raw: str) -> bool:
    if raw.lower() not in FLAGS:
        raise ValueError
    return FLAGS[raw.lower()]


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(raw: str) -> float:
        number = float(raw)
        if not least <= number <= most:
            raise ValueError
        return number

    return parse


def _https(get: Callable[..., Any]) -> tuple[bool, int]:
    """Returns whether people come by https, and through how many proxies; one of them then has the certificate."""
    https = get("GREENSERVE_HTTPS", False, _flag, "write 1 or 0")
    proxies = get("GREENSERVE_PROXIES", 0, _number_of_proxies, "give how many of yours stand in front, 0 to 9")
    if https and not proxies:
        raise BadEnvironment(
            "greenserve: GREENSERVE_HTTPS=1 cannot be used alone: GreenServe speaks plain HTTP; put a proxy with TLS "
            "before it, and set GREENSERVE_PROXIES=1"
        )
    return https, proxies


def _plane(values: Mapping[str, str], get: Callable[..., Any]) -> str:
    """Returns the name of a further control plane, which has no servers, no demo and no key of its own."""
    remedy = "give a name of up to 30 small letters, digits and '-', which is no process's"
    plane: str = get("GREENSERVE_PLANE", "", _plane_name, remedy)
    missing = [name for name in SHARED if plane and not values.get(name, "").strip()]
    if missing:
        raise BadEnvironment(
            f"greenserve: GREENSERVE_PLANE={plane!r} cannot be used alone: set {' and '.join(missing)}, as they are at "
            "the other control planes"
        )
    if plane and get("GREENSERVE_DEMO", True, _flag, "write 1 or 0"):
        raise BadEnvironment(
            f"greenserve: GREENSERVE_PLANE={plane!r} cannot be used with the demo, which has one control plane: "
            "set GREENSERVE_DEMO=0"
        )
    return plane


def _plane_name(raw: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,29}", raw) or raw in PROCESSES:
        raise ValueError
    return raw


def _number_of_proxies(raw: str) -> int:
    number = int(raw)
    if not 0 <= number <= 9:
        raise ValueError
    return number


def _server_versions(raw: str) -> tuple[str, ...]:
    versions = tuple(word.strip().lower() for word in raw.split(",") if word.strip())
    if not all(re.fullmatch(r"(redis|valkey|postgresql)-\d+(\.\d+){1,2}", word) for word in versions):
        raise ValueError
    return versions


def _web_names(raw: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in raw.split(",") if name.strip())
    if not all(re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name) for name in names):
        raise ValueError
    return names


def _token(raw: str) -> str:
    if len(raw) < LEAST_TOKEN or not raw.isascii() or not raw.isprintable() or " " in raw:
        raise BadEnvironment(  # which does not repeat it: it is nearly a secret
            f"greenserve: GREENSERVE_WORKER_TOKEN cannot be used: give at least {LEAST_TOKEN} letters and digits"
        )
    return raw


def _carbon_secrets(values: Mapping[str, str]) -> dict[str, Secret]:
    """Returns the keys of carbon providers, from the environment and the file that GREENSERVE_SECRETS_FILE names."""
    file = values.get("GREENSERVE_SECRETS_FILE", "").strip()
    try:
        return gather(values, Path(file) if file else None)
    except SecretsError as error:
        raise BadEnvironment(f"greenserve: carbon providers' keys cannot be used: {error}") from None


def _hidden(values: Mapping[str, str], name: str, parse: Callable[[str], T], remedy: str) -> T | None:
    """Reads as `get` of `read` does, and never repeats the value in an error."""
    raw = values.get(name, "").strip()
    try:
        return parse(raw) if raw else None
    except ValueError:
        raise BadEnvironment(f"greenserve: {name} cannot be used: {remedy}") from None


def _secret(raw: str) -> Secret:
    if len(raw) < LEAST_TOKEN or not raw.isascii() or not raw.isprintable() or " " in raw:
        raise ValueError
    return Secret(raw)


def _secret_url(raw: str) -> Secret:
    parts = urlsplit(raw)
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ValueError
    return Secret(raw)


def _email(raw: str) -> str:
    if not re.fullmatch(r"[^@\s,<>]+@[^@\s,<>]+", raw):
        raise ValueError
    return raw


def _line(most: int) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if len(raw) > most or not raw.isprintable():
            raise ValueError
        return raw

    return parse


def _emails(raw: str) -> tuple[str, ...]:
    return tuple(_email(word.strip()) for word in raw.split(",") if word.strip())


def _names(raw: str) -> frozenset[str]:
    names = frozenset(name.strip().lower() for name in raw.split(",") if name.strip())
    if not all(re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", name) and not name[-1].isdigit() for name in names):
        raise ValueError
    return names


def _own_hosts(raw: str) -> frozenset[str]:
    hosts = frozenset(word.strip().lower() for word in raw.split(",") if word.strip())
    if any(host_fault(host, private=True) for host in hosts):
        raise ValueError
    return hosts


def _declared_host(text: str) -> str:
    DeclaredPowerMeter.parse(text)
    return text


def _fields(raw: str) -> str:
    if not all(re.fullmatch(r"(vllm_xargs\.)?[A-Za-z0-9_-]+", word.strip()) for word in raw.split(",")):
        raise ValueError
    return raw


def _hosts(raw: str) -> str:
    WorkerHosts(raw)
    return raw


def _networks(raw: str) -> str:
    networks(raw)
    return raw


def _folder(raw: str) -> Path:
    path = Path(raw)
    if not path.is_absolute():
        raise ValueError
    return path


def _file(raw: str) -> Path:
    path = Path(raw)
    if not path.is_absolute() or not path.is_file():
        raise ValueError
    return path


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if raw.upper() not in words:
            raise ValueError
        return raw.upper()

    return parse


def _server(*schemes: str) -> Callable[[str], str]:
    """Returns a parser of addresses, which refuses what clients would not understand, and repeat in errors."""

    def parse(raw: str) -> str:
        parts = urlsplit(raw)
        if parts.scheme not in schemes or re.search(r"%(?![0-9A-Fa-f]{2})", raw):
            raise ValueError
        _ = parts.port  # raises ValueError
        return raw

    return parse


def _redis(raw: str) -> str:
    if redis_address.sentinels(raw) is None:
        return _server("redis", "rediss", "unix")(raw)
    return raw


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if not raw.startswith(schemes):
            raise ValueError
        return raw

    return parse


def _origin(raw: str) -> str:
    parts = urlsplit(raw)
    bare = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or not bare or parts.port == 0:
        raise ValueError
    return f"{parts.scheme}://{parts.netloc}"


def _secret_key(var_dir: Path) -> str:
    try:
        return own_secret(var_dir / "secret-key")
    except OSError as error:
        raise BadEnvironment(
            f"greenserve: cannot use {error.filename or var_dir}: {error.strerror}; "
            "set GREENSERVE_VAR to a folder of yours"
        ) from None


def own_secret(path: Path) -> str:
    """Returns a key of this installation's own, made once and kept readable by its owner alone. Raises OSError.

    It appears whole or not at all: several processes may come here at once, and one may be killed half-way.
    """
    if path.exists():
        if key := path.read_text().strip():
            return key
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == SECRETS:
        path.parent.chmod(0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(48))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first; its key is the key
    finally:
        draft.unlink()
    return path.read_text().strip()
