"""Makes a request's bytes a call that can be placed, and its end a record: gateway and picker both do this."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from pools import wire

from .accounts import request_energy
from .accounts.gateway_metrics import Metrics
from .accounts.monthly_budgets import BudgetKeeper
from .accounts.networks import Networks
from .accounts.records import counts, row_of
from .accounts.request_journal import Journal
from .accounts.request_limits import LimitKeeper
from .accounts.use_elsewhere import UseElsewhere
from .classify.classifier import Classifier
from .errors import ApiError, expired_key, invalid_key, model_not_found, not_offered, unavailable
from .fleet.view import FleetView, Service
from .http.request import Request
from .placing.instance_choice import WarmPrefixes
from .requests import validation
from .requests.bodies import ChatBody, CompletionBody
from .requests.call import NOT_SERVED, Call, Ending
from .requests.client_fields import ClientFields
from .requests.endpoint import Endpoint
from .requests.features import features_of, texts_of
from .requests.images import image_tokens

log = logging.getLogger(__name__)

MODELS = b"/v1/models"
_OWN_WISHES = frozenset({*validation.LIMIT_HEADERS, validation.CONTINUE_HEADER, request_energy.HEADER})


class Refused(Exception):
    """A call to a known service by a known key is refused before it is sent anywhere; it leaves a record."""

    def __init__(self, call: Call, error: ApiError) -> None:
        super().__init__(error.message)
        self.call = call
        self.error = error


@dataclass(slots=True)
class Intake:
    """Looks at requests, and keeps their records. `open`: calls that may be placed and have left no record, by id."""

    fleet: FleetView
    classifier: Classifier
    journal: Journal
    metrics: Metrics
    open: dict[str, Call] = field(default_factory=dict)
    budgets: BudgetKeeper = field(default_factory=BudgetKeeper)
    use: UseElsewhere = field(default_factory=UseElsewhere)
    limits: LimitKeeper = field(default_factory=LimitKeeper)
    networks: Networks = field(default_factory=Networks)
    fields: ClientFields = field(default_factory=ClientFields)  # that clients may send to engines

    def key(self, request: Request, host: str = "") -> wire.FleetKey:
        """Returns the caller's key: the one that its head was found to have, unless it has been revoked since.

        Raises ApiError 401, or 503 while the fleet is not known.

        Args:
            host: The address that the request came from; empty: not known, and so none that a key is limited to.
        """
        if not self.fleet.known:
            raise unavailable("The gateway does not know its fleet yet.", "starting", retry_after_s=1)
        key = request.key
        if key is None or not self.fleet.holds(key):
            key = self._key_of_head(request, host)
        if key.expires_at_s is not None and key.expires_at_s <= request.started_at_s:
            raise expired_key()
        return key

    def _key_of_head(self, request: Request, host: str) -> wire.FleetKey:
        secret = request.bearer()
        key = None if secret is None else self.fleet.key(secret)
        if key is None:
            raise invalid_key()
        if key.addresses and not self.networks.hold(key.addresses, host):
            raise invalid_key()  # and no hint: whoever stole it need not learn that it is one
        return key

    def call(self, request: Request, endpoint: Endpoint, host: str = "") -> Call:
        """Returns a request that is whole and right, ready to be placed. Raises ApiError, or Refused with the call."""
        key = self.key(request, host)
        try:
            parsed = validation.decode(request.body, endpoint, self.fields)
        except ApiError as error:
            found = self._model(key, validation.model_of(request.body))
            if found is not None:
                raise Refused(Call(request, found[0], key, endpoint, adapter=found[1]), error) from None
            raise
        found = self._model(key, parsed.model)
        if found is None:
            raise model_not_found(parsed.model)
        call = Call(request, found[0], key, endpoint, bool(parsed.stream), found[1])
        try:
            self._prepare(call, parsed)
            self.budgets.check(call)
            self.limits.admit(call, self.fleet.gateways)
        except ApiError as error:
            raise Refused(call, error) from None
        self.open[call.request_id] = call
        return call

    def _model(self, key: wire.FleetKey, name: str | None) -> tuple[Service, str] | None:
        """Returns the service, and the adapter if it is one; None: there is none of the name that the key may use."""
        found = self.fleet.model(name or "")
        return found if found is not None and _may_use(key, found[0]) else None

    def _prepare(self, call: Call, parsed: CompletionBody | ChatBody) -> None:
        """Checks the body and fills in what routing needs. Raises ApiError."""
        service, request, endpoint = call.service, call.request, call.endpoint
        if not service.offers(endpoint.engine_path):
            raise not_offered(call.model_name, endpoint.engine_path)
        prompt = validation.measure_prompt(parsed, endpoint.prompt_field)
        call.max_tokens = validation.max_tokens(parsed) if endpoint.generates else 0
        bound = validation.output_bound(parsed, call.max_tokens)
        detailed = self.classifier.wants_details(service.name, request.received_s)
        asked = call.model_name, request.started_at_s, call.key.tenant_id, bound
        features = features_of(parsed, prompt, *asked, detailed, self._image_tokens(service, parsed))
        classified = self.classifier.classify(service, features, prompt.tokens)
        most_tokens = classified.prompt_tokens + (call.max_tokens or 0)
        if most_tokens >= service.max_model_len and not validation.cuts_prompt(parsed):
            validation.check_length(prompt, classified.prompt_tokens, call.max_tokens, service.max_model_len, endpoint)
        call.features, call.classified = features, classified
        if self.classifier.can_refine(service, features, classified):
            call.texts = texts_of(parsed)
        if parsed.priority is not UNSET:
            call.priority = validation.own_priority(parsed)
        if parsed.service_tier is not UNSET:
            call.tier = validation.own_tier(parsed)
        if not _OWN_WISHES.isdisjoint(request.headers):
            call.own_limits = validation.own_limits(request.headers)
            call.continues = endpoint.continues and validation.own_continuation(request.headers, parsed)
            call.tells_energy = request_energy.asked(request.headers)
        if len(request.body) > WarmPrefixes.BLOCK_BYTES and endpoint.generates:
            call.prompt_start = _prompt_start(request.body, endpoint)
        call.cache_salt = validation.cache_salt(parsed, call.key.cache_salt)
        engine_model = call.adapter or service.model
        call.body, call.strip_usage = validation.relayed_body(request.body, parsed, engine_model, call.cache_salt)
        call.strip_usage = call.strip_usage and not call.tells_energy

    def _image_tokens(self, service: Service, parsed: CompletionBody | ChatBody) -> int:
        """Returns the tokens of a chat's images, and counts these; 0 where no rule is known for its model."""
        if service.images is None or not isinstance(parsed, ChatBody):
            return 0
        found = image_tokens(parsed, service.images)
        self.classifier.counts.add_images(service.name, found.sized, found.unknown)
        return found.tokens

    def models(self, request: Request, path: bytes, created_at_s: int, host: str = "") -> bytes:
        """Returns the models that the caller may use, or the one that `path` names, in OpenAI's shape with vLLM's
        members. Raises ApiError 401, and 404 for one that is not theirs.

        Adapters that engines have stand after the services, each with its service as its `parent`.
        """
        key = self.key(request, host)
        own = [service for service in self.fleet.services.values() if _may_use(key, service)]
        models = [_shown(service, created_at_s) for service in own]
        models += [
            _shown(service, created_at_s, name)
            for name, service in sorted(self.fleet.adapters.items())
            if service in own and name not in self.fleet.services
        ]
        if path == MODELS:
            return msgspec.json.encode({"object": "list", "data": models})
        name = unquote(path.removeprefix(MODELS + b"/"))
        for model in models:
            if model["id"] == name:
                return msgspec.json.encode(model)
        raise model_not_found(name)

    def record(self, call: Call, ending: Ending) -> None:
        """Learns from a call that is over, and writes its row to the journal. Never raises."""
        self.record_all([(call, ending)])

    def record_all(self, ended: Iterable[tuple[Call, Ending]]) -> None:
        """Records several calls as `record` does, with one write for all."""
        rows = []
        for call, ending in ended:
            self.open.pop(call.request_id, None)
            try:
                rows.append(self._row(call, ending))
            except Exception:
                log.exception("request %s leaves no record", call.request_id)
        self.journal.append(*rows)

    def open_requests(self) -> wire.OpenRequests:
        """Returns the open calls, the newest first; of very many not all."""
        newest = list(islice(reversed(self.open.values()), wire.OPEN_REQUESTS_MOST))
        services = list(dict.fromkeys(call.service.name for call in newest))
        return wire.OpenRequests(
            services,
            [services.index(call.service.name) for call in newest],
            [call.request_id for call in newest],
            [call.request.started_at_s for call in newest],
            [call.prompt_tokens or 0 for call in newest],
            [call.predicted_tokens or 0 for call in newest],
        )

    def _row(self, call: Call, ending: Ending) -> wire.RequestRow:
        """Makes a call's row, counts it and learns from it."""
        counted = prompt_tokens, output_tokens, source, _ = counts(call, ending)
        tokens = 0 if ending.status in NOT_SERVED else (prompt_tokens or 0) + (output_tokens or 0)
        self.budgets.count(call, tokens)
        self.use.note_ended(call.key.tenant, tokens)
        if call.charge is not None:
            ended_s = call.request.received_s if ending.ended_s is None else ending.ended_s
            call.charge.settle(tokens, ended_s)
        actual = None
        features, classified = call.features, call.classified
        measured = source == "usage" and ending.status == "ok"
        if measured and prompt_tokens and output_tokens is not None and features is not None:
            actual = self.classifier.actual_class(call.service, features, prompt_tokens, output_tokens)
        row = row_of(call, ending, actual, counted)
        self.metrics.count(row)
        if features is not None and classified is not None:
            self.classifier.learn(row, features, classified)
        return row


def asks_for_models(path: bytes) -> bool:
    """Says whether a path is the list of models, or one of them; a name may hold slashes."""
    return path.startswith(MODELS) and path[len(MODELS) :][:1] in (b"", b"/")


def _shown(service: Service, created_at_s: int, adapter: str = "") -> dict[str, Any]:
    """Returns a service's model, or an adapter of it. Benchmarks of vLLM's take the tokenizer by `root`."""
    return {
        "id": adapter or service.name,
        "object": "model",
        "created": created_at_s,
        "owned_by": "greenserve",
        "root": service.root,
        "parent": service.name if adapter else None,
        "permission": [],
        "max_model_len": service.max_model_len,
    }


def _may_use(key: wire.FleetKey, service: Service) -> bool:
    return not key.services or service.name in key.services


def _prompt_start(body: bytes, endpoint: Endpoint) -> bytes | memoryview:
    """The prompt as it stands in the body: equal beginnings of the bytes are equal beginnings of the prompt."""
    begins = body.find(endpoint.prompt_key)
    return memoryview(body)[begins : begins + WarmPrefixes.MAX_BYTES] if begins >= 0 else b""
