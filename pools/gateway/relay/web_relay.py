"""/v1/files and /v1/batches: relayed to the web process, which has the database.

Bodies of 200 MB pass either way without being buffered, and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import yarl

from ..errors import SERVER_ERROR, ApiError, unavailable
from ..http.client_protocol import ClientConnection
from ..http.request import Request

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 20  # of an upload that the web process has not taken yet
# These and no others: whatever else the web process serves is not to be reached from here.
_PATH = re.compile(rb"/v1/(files|batches)(/[A-Za-z0-9_-]{1,100}(/(content|cancel))?)?(\?[!-~]*)?")
_PASSED_ON = {b"authorization": "Authorization", b"content-type": "Content-Type", b"accept": "Accept"}
_PASSED_BACK = ("Content-Type", "Retry-After", "Cache-Control", "Content-Disposition")


def is_web_path(path: bytes) -> bool:
    return _PATH.fullmatch(path) is not None


@dataclass(frozen=True, slots=True)
class WebTimeouts:
    """Seconds. `read_s`: the web process works on a large upload once it has all of it."""

    connect_s: float = 2.0
    client_s: float = 60.0  # between two pieces of an upload, or of a response that is not read
    read_s: float = 300.0
    total_s: float = 1_800.0


class WebProcess:
    """Connections to the web process."""

    def __init__(self, url: str, timeouts: WebTimeouts | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeouts = timeouts or WebTimeouts()
        self._session: aiohttp.ClientSession | None = None
        self._running: dict[asyncio.Task[None], WebExchange] = {}

    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            t = self.timeouts
            timeout = aiohttp.ClientTimeout(total=t.total_s, connect=t.connect_s, sock_read=t.read_s)
            self._session = aiohttp.ClientSession(
                timeout=timeout, auto_decompress=False, skip_auto_headers=("Content-Type", "User-Agent")
            )
        return self._session

    def relay(self, request: Request, client: ClientConnection) -> None:
        """Answers the request with what the web process says. Returns at once."""
        exchange = WebExchange(request, client, self)
        task = exchange.begin()
        self._running[task] = exchange
        task.add_done_callback(self._running.pop)

    async def stop(self, grace_s: float) -> None:
        """Lets what runs come to its end within the grace time, then ends it."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        left = dict(self._running)
        for exchange in left.values():
            exchange.stop()
        if left:
            await asyncio.wait(left, timeout=1.0)
        if self._session is not None:
            await self._session.close()


class WebExchange:
    """One request on its way there and its response on its way back. An UploadListener."""

    def __init__(self, request: Request, client: ClientConnection, web: WebProcess) -> None:
        self._request = request
        self._client = client
        self._web = web
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []
        self._buffered_bytes = 0
        self._upload_paused = False
        self._complete = not request.incoming
        self._news = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._started = False
        self._stalled = ""

    def begin(self) -> asyncio.Task[None]:
        self._client.listener = self
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self._task

    async def _run(self) -> None:
        try:
            await self._relay()
        except asyncio.CancelledError:
            self._fail(unavailable("The gateway is shutting down.", "shutting_down"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._fail(self._explain(error))
        except Exception:
            log.exception("relaying %r failed inside the gateway", self._request.path)
            self._fail(ApiError(500, "Internal error.", kind=SERVER_ERROR))
        finally:
            self._resume()

    def _explain(self, error: Exception) -> ApiError:
        if self._stalled:
            return ApiError(408, self._stalled)
        if isinstance(error, aiohttp.ClientConnectorError):
            return unavailable("Files and batches are not served at the moment.", "web_unavailable")
        if isinstance(error, TimeoutError):
            return ApiError(504, "The web process sent nothing in time.", kind=SERVER_ERROR, code="upstream_timeout")
        return ApiError(502, f"The request failed upstream: {error}.", kind=SERVER_ERROR, code="upstream_error")

    async def _relay(self) -> None:
        request = self._request
        sent = request.headers
        headers = {name: sent[raw].decode("latin-1") for raw, name in _PASSED_ON.items() if raw in sent}
        body = self._body() if request.incoming else request.body or None
        if request.incoming:
            headers["Content-Length"] = str(request.incoming)
        url = yarl.URL(self._web.url + request.path.decode("latin-1"), encoded=True)
        async with self._web.session().request(
            request.method.decode(), url, data=body, headers=headers, allow_redirects=False
        ) as response:
            lines = [(name, response.headers[name]) for name in _PASSED_BACK if name in response.headers]
            head = "".join(f"{name.lower()}: {value}\r\n" for name, value in lines).encode("latin-1")
            identity = request.client_id()
            if identity:
                head += b"x-request-id: %b\r\n" % identity
            if request.method == b"HEAD":
                self._client.respond(response.status, b"", None, head)
                return
            self._started = True
            self._client.start_stream(response.status, head)
            async for data in response.content.iter_any():
                self._client.send(data)
                if self._client.paused:
                    self._may_write.clear()
                    self._stalled = f"The client read nothing for {self._web.timeouts.client_s:g} s."
                    async with asyncio.timeout(self._web.timeouts.client_s):
                        await self._may_write.wait()
                    self._stalled = ""
            self._client.finish()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            while not self._pieces and not self._complete:
                self._news.clear()
                self._stalled = f"Nothing more of the body came for {self._web.timeouts.client_s:g} s."
                async with asyncio.timeout(self._web.timeouts.client_s):
                    await self._news.wait()
                self._stalled = ""
            if not self._pieces:
                return
            data, self._pieces = b"".join(self._pieces), []
            self._buffered_bytes = 0
            self._resume()
            yield data

    def _resume(self) -> None:
        if self._upload_paused:
            self._upload_paused = False
            self._client.pause_upload(False)

    def _fail(self, error: ApiError) -> None:
        if self._started:
            self._client.cut()
        elif not self._complete:
            self._client.give_up(error)
        else:
            retry = b"" if error.retry_after_s is None else b"retry-after: %d\r\n" % error.retry_after_s
            self._client.respond(error.status, error.body(), headers=retry)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- the client (UploadListener) ---------------------------------------------------------------

    def client_gone(self) -> None:
        self.stop()

    def client_paused(self, paused: bool) -> None:
        if not paused:
            self._may_write.set()

    def client_sent(self, data: bytes) -> None:
        self._pieces.append(data)
        self._buffered_bytes += len(data)
        self._news.set()
        if self._buffered_bytes > BUFFER_BYTES and not self._upload_paused:
            self._upload_paused = True
            self._client.pause_upload(True)

    def client_sent_all(self) -> None:
        self._complete = True
        self._news.set()
