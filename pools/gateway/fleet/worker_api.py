"""`/v1/workers`: where workers register themselves, renew their leases and leave. For holders of the worker token."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from redis.exceptions import RedisError

from core.engine import engine_params
from core.engine.engine_model import UnknownConfiguration, engine_model
from core.engine.engine_params import UnsplittableModel
from pools import wire
from pools.registration.registered_engines import model_of, pools_of

from ..errors import SERVER_ERROR, ApiError, bad_body, unavailable
from ..http.access import has_token
from ..http.client_protocol import ClientConnection
from ..http.request import Request
from .workers import MOST_WORKERS, Worker, Workers

log = logging.getLogger(__name__)

PATH = b"/v1/workers"
LEAST_LEASE_S, LONGEST_LEASE_S = 5.0, 3600.0
_FIELDS = {"gpu": "gpu_type"}  # what the engine model calls otherwise

Refuse = Callable[[Request, ClientConnection, ApiError], None]
Answer = tuple[int, bytes]
_Word = Annotated[str, msgspec.Meta(max_length=200)]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    url: _Word
    service: _Word
    gpu_type: _Word
    tp: Annotated[int, msgspec.Meta(ge=1, le=64)]
    lease_s: float
    request_class: _Word | None = None
    site: _Word | None = None
    model: _Word | None = None
    engine: _Word | None = None


_BODY = msgspec.json.Decoder(_Body)


class _Silent:
    """The listener of an errand: it is short, and done whether or not its client waits for it."""

    def client_gone(self) -> None: ...

    def client_paused(self, paused: bool) -> None: ...


class WorkerApi:
    """Serves the path. Leases are begun and ended in the store, beside the event loop's other work."""

    def __init__(self, token: str, workers: Workers) -> None:
        self._token = token
        self._workers = workers
        self._tasks: set[asyncio.Task[None]] = set()

    def takes(self, path: bytes) -> bool:
        return path == PATH or path.startswith(PATH + b"/")

    def serve(self, request: Request, connection: ClientConnection, refuse: Refuse) -> None:
        """Answers at once or a little later. Raises ApiError."""
        self.check_token(request)
        path = request.path.partition(b"?")[0]
        uid = path[len(PATH) + 1 :].decode(errors="replace")
        if uid and request.method == b"DELETE":
            self._later(request, connection, refuse, self._leave(uid))
        elif not uid and request.method == b"POST":
            self._later(request, connection, refuse, self._register(self._checked(request.body)))
        elif not uid and request.method in (b"GET", b"HEAD"):
            shown = [_shown(worker.registration, worker) for worker in self._workers.known()]
            connection.respond(200, msgspec.json.encode({"object": "list", "data": shown}))
        else:
            raise ApiError(405, "Use POST or GET here, DELETE with a worker's id.", code="method_not_allowed")

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check_token(self, request: Request) -> None:
        """Raises ApiError 401."""
        if not has_token(request, self._token):
            raise ApiError(401, "Send the worker token as 'Authorization: Bearer <token>'.", code="invalid_token")

    # -- errands -----------------------------------------------------------------------------------

    def _later(self, request: Request, connection: ClientConnection, refuse: Refuse, work: Awaitable[Answer]) -> None:
        connection.listener = _Silent()
        task = asyncio.get_running_loop().create_task(self._run(request, connection, refuse, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, request: Request, connection: ClientConnection, refuse: Refuse, work: Awaitable[Answer]
    ) -> None:
        try:
            connection.respond(*await work)
        except ApiError as error:
            refuse(request, connection, error)
        except (RedisError, OSError) as error:
            log.warning("a worker's registration cannot be kept: %s", error or type(error).__name__)
            refuse(request, connection, unavailable("Registrations cannot be kept at the moment.", "no_store"))
        except Exception:
            log.exception("a worker's registration failed inside the gateway")
            refuse(request, connection, ApiError(500, "Internal error.", kind=SERVER_ERROR))

    async def _register(self, worker: wire.WorkerRegistration) -> Answer:
        workers = self._workers
        if workers.store is None:
            raise unavailable("Registrations cannot be kept without Redis.", "no_store")
        known = workers.get(worker.uid)
        if known is None and sum(1 for _ in workers.known()) >= MOST_WORKERS:
            raise ApiError(409, f"{MOST_WORKERS} workers are registered, as many as there may be.", code="too_many")
        await workers.store.put_worker(worker)
        workers.changed()
        return 201 if known is None else 200, msgspec.json.encode(_shown(worker, known))

    async def _leave(self, uid: str) -> Answer:
        store = self._workers.store
        if store is None or not await store.drop_worker(uid):
            raise ApiError(404, f"No worker '{uid[:100]}' is registered.", code="not_found")
        self._workers.changed()
        return 200, msgspec.json.encode({"id": uid, "object": "worker", "deleted": True})

    # -- what may register -------------------------------------------------------------------------

    def _checked(self, body: bytes) -> wire.WorkerRegistration:
        """Raises ApiError 400 naming the field, and what would do."""
        fleet = self._workers.fleet
        if fleet is None:
            raise unavailable("The gateway does not know its fleet yet.", "starting", retry_after_s=1)
        try:
            given = _BODY.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_body(error) from None
        url = self._url(given.url)
        service = next((s for s in fleet.services if s.name == given.service), None)
        if service is None:
            raise _unknown("service", given.service, (s.name for s in fleet.services))
        if given.request_class is not None and given.request_class not in {c.name for c in service.classes}:
            raise _unknown("request_class", given.request_class, (c.name for c in service.classes))
        _check_site(service, given)
        _check_engine(service, given)
        if not LEAST_LEASE_S <= given.lease_s <= LONGEST_LEASE_S:
            raise _bad("lease_s", f"must be between {LEAST_LEASE_S:g} and {LONGEST_LEASE_S:g}, not {given.lease_s:g}")
        return wire.WorkerRegistration(
            uid=str(uuid.uuid5(uuid.NAMESPACE_URL, url)),
            url=url,
            service=given.service,
            gpu_type=given.gpu_type,
            tp=given.tp,
            lease_s=given.lease_s,
            registered_at_s=time.time(),
            request_class=given.request_class,
            site=given.site,
            model=given.model,
            engine=given.engine,
        )

    def _url(self, url: str) -> str:
        """Returns scheme, host and port, and nothing else of what was sent."""
        example = "must be like 'http://10.0.0.7:8000'"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
        except ValueError:
            raise _bad("url", example) from None
        if parts.scheme not in ("http", "https") or not host or not port or "@" in parts.netloc:
            raise _bad("url", example)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise _bad("url", f"{example}, without a path")
        if not self._workers.hosts.allow(host):
            raise _bad("url", f"names '{host[:100]}', where workers may not be: --worker-hosts says where they may")
        return f"{parts.scheme}://[{host}]:{port}" if ":" in host else f"{parts.scheme}://{host}:{port}"


def _check_site(service: wire.FleetService, given: _Body) -> None:
    pools = pools_of(service, given.request_class, None)
    sites = sorted({pool.site for pool in pools})
    if not pools:
        raise _bad("request_class", f"has no pool of '{service.name}' yet")
    if given.site is not None and given.site not in sites:
        raise _unknown("site", given.site, sites)
    if given.site is None and len(sites) > 1:
        raise _bad("site", f"must say where the worker is: one of {', '.join(sites)}")


def _check_engine(service: wire.FleetService, given: _Body) -> None:
    """What the engine model does not know could not be routed to by what it takes and draws."""
    if given.gpu_type not in engine_params.GPUS:
        raise _unknown("gpu_type", given.gpu_type, engine_params.GPUS)
    try:
        name, shape = model_of(service, given.model)
        model = engine_model(shape or name, given.gpu_type, given.tp, given.engine or service.engine)
    except UnsplittableModel as error:
        raise _bad("tp", f"is not possible: {error}") from None
    except UnknownConfiguration as error:
        raise _bad(_FIELDS.get(error.field_name, error.field_name), f"is not known: {error}") from None
    if not model.fits:
        raise _bad("tp", f"is too small: {given.tp} x {given.gpu_type} do not hold the model")


def _bad(field: str, what: str) -> ApiError:
    return ApiError(400, f"'{field}' {what}.", param=field)


def _unknown(field: str, value: str, known: Iterable[str]) -> ApiError:
    return _bad(field, f"must be one of {', '.join(known) or 'none: there are none'}; '{value[:100]}' is not known")


def _shown(registration: wire.WorkerRegistration, worker: Worker | None) -> dict[str, Any]:
    return {
        "id": registration.uid,
        "object": "worker",
        **{name: value for name, value in msgspec.structs.asdict(registration).items() if name != "uid"},
        "status": "probing" if worker is None else worker.state,
        "detail": "" if worker is None else worker.said,
    }
