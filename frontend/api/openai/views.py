"""OpenAI's /v1/files and /v1/batches. The caller is who its API key says; there is no session.

Clients come through the gateway, which relays these paths (pools.gateway.relay.web_relay).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from pools.models import ApiKey
from pools.writes import find_key
from scheduler.batches import batch_requests
from scheduler.batches import tenant_files as store
from scheduler.batches.errors import Refused
from scheduler.models import Batch, File

View = Callable[..., HttpResponseBase]
FILES_A_PAGE, BATCHES_A_PAGE = (10_000, 10_000), (20, 100)  # usual, most


def endpoint(**methods: Callable[..., Any]) -> View:
    """Makes a view of these methods. Each gets the request and the caller's key, and returns JSON or a response."""

    @csrf_exempt
    @login_not_required
    @never_cache
    @functools.wraps(next(iter(methods.values())), assigned=("__module__", "__doc__"))
    def view(request: HttpRequest, **ids: str) -> HttpResponseBase:
        try:
            key = _caller(request)
            method = methods.get(request.method or "")
            if method is None:
                raise Refused(405, f"Use {' or '.join(sorted(methods))} here.", code="method_not_allowed")
            found = method(request, key, **ids)
        except Refused as error:
            return JsonResponse(error.body(), status=error.status)
        except (MultiPartParserError, RequestDataTooBig, SuspiciousOperation) as error:
            refused = Refused(400, f"The body cannot be read: {error}")
            return JsonResponse(refused.body(), status=refused.status)
        return found if isinstance(found, HttpResponseBase) else JsonResponse(found)

    return view


def _caller(request: HttpRequest) -> ApiKey:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    key = find_key(secret.strip(), timezone.now()) if scheme.lower() == "bearer" else None
    if key is None:
        raise Refused(
            401, "Incorrect or missing API key. Send it as 'Authorization: Bearer <key>'.", code="invalid_api_key"
        )
    return key


# -- files -----------------------------------------------------------------------------------------


def _create_file(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    purpose, upload = request.POST.get("purpose"), request.FILES.get("file")
    if purpose != File.Purpose.BATCH:
        raise Refused(400, "'purpose' must be 'batch'.", param="purpose")
    if upload is None:
        raise Refused(400, "'file' is missing.", param="file")
    life = {name: request.POST.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    life_s = batch_requests.expiry(life, "expires_after") if any(life.values()) else None
    return store.shape(store.create(key.tenant, upload.name or "", upload.chunks(), life_s, timezone.now()))


def _list_files(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    found, query, now = store.visible(key.tenant, timezone.now()), request.GET, timezone.now()
    if purpose := query.get("purpose"):
        found = found.filter(purpose=_text(purpose, "purpose"))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Refused(400, "'order' must be 'asc' or 'desc'.", param="order")
    cursor = store.find(key.tenant, query["after"], now) if query.get("after") else None
    rows, more = batch_requests.page(found, cursor, _limit(request, *FILES_A_PAGE), order == "desc")
    return _list([store.shape(row) for row in rows], more)


def _get_file(request: HttpRequest, key: ApiKey, file_id: str) -> dict[str, Any]:
    return store.shape(store.find(key.tenant, file_id, timezone.now()))


def _delete_file(request: HttpRequest, key: ApiKey, file_id: str) -> dict[str, Any]:
    return store.delete(key.tenant, file_id, timezone.now())


def _file_content(request: HttpRequest, key: ApiKey, file_id: str) -> HttpResponseBase:
    found = store.find(key.tenant, file_id, timezone.now())
    response = StreamingHttpResponse(store.stream(found), content_type="application/octet-stream")
    response.headers["Content-Length"] = str(found.bytes)
    return response


# -- batches ---------------------------------------------------------------------------------------


def _create_batch(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    try:
        asked = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not valid JSON.", code="invalid_json") from None
    if not isinstance(asked, dict):
        raise Refused(400, "The body must be a JSON object.", code="invalid_json")
    return batch_requests.shape(batch_requests.create(key, asked, timezone.now()))


def _list_batches(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    after = request.GET.get("after")
    cursor = batch_requests.find(key.tenant, after) if after else None
    found = Batch.objects.filter(tenant=key.tenant).select_related("service")
    rows, more = batch_requests.page(found, cursor, _limit(request, *BATCHES_A_PAGE))
    return _list([batch_requests.shape(row) for row in rows], more)


def _get_batch(request: HttpRequest, key: ApiKey, batch_id: str) -> dict[str, Any]:
    return batch_requests.shape(batch_requests.find(key.tenant, batch_id))


def _cancel_batch(request: HttpRequest, key: ApiKey, batch_id: str) -> dict[str, Any]:
    return batch_requests.shape(batch_requests.cancel(key.tenant, batch_id, timezone.now()))


# -- what they share -------------------------------------------------------------------------------


def _list(rows: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"object": "list", "data": rows, "first_id": first, "last_id": last, "has_more": more}


def _limit(request: HttpRequest, usual: int, most: int) -> int:
    given = request.GET.get("limit")
    if given is None:
        return usual
    number = int(given) if given.isascii() and given.isdigit() and len(given) < 7 else 0
    if not 1 <= number <= most:
        raise Refused(400, f"'limit' must be from 1 to {most}.", param="limit")
    return number


def _text(value: str, param: str) -> str:
    if "\0" in value:
        raise Refused(400, f"'{param}' holds a character that it may not.", param=param)
    return value


files = endpoint(POST=_create_file, GET=_list_files)
file = endpoint(GET=_get_file, DELETE=_delete_file)
file_content = endpoint(GET=_file_content)
batches = endpoint(POST=_create_batch, GET=_list_batches)
batch = endpoint(GET=_get_batch)
cancel_batch = endpoint(POST=_cancel_batch)
