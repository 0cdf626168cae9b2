"""Envoy's external processing messages, read and written; the only module that knows protobuf.

Names and rules are those of `envoy.service.ext_proc.v3` and of the Inference Extension's proposal 004.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2

from ..http.request import Request

METHOD = "envoy.service.ext_proc.v3.ExternalProcessor", "Process"
DESTINATION = "x-gateway-destination-endpoint"
_DESTINATION_SPACE = "envoy.lb"
_SERVED = "x-gateway-destination-endpoint-served"
_SUBSET_SPACE = "envoy.lb.subset_hint"
_SUBSET = "x-gateway-destination-endpoint-subset"
_ATTRIBUTES = "envoy.filters.http.ext_proc"
MAX_PIECE_BYTES = 62 << 10  # of a streamed body: below the 64 KiB that Envoy's peers commonly take

REQUEST_HEADERS, REQUEST_BODY, REQUEST_TRAILERS = "request_headers", "request_body", "request_trailers"
RESPONSE_HEADERS, RESPONSE_BODY, RESPONSE_TRAILERS = "response_headers", "response_body", "response_trailers"

Headers = Mapping[str, bytes]


class BodyMode(IntEnum):
    """Envoy's way to send a body: ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX = 4
    GRPC = 5


class ProtocolError(Exception):
    """Envoy does not send what the picker needs: its text says what to configure."""


@dataclass(frozen=True, slots=True)
class Modes:
    """The body modes that Envoy is configured with; the protocol's own where it names none (before 1.34)."""

    request: BodyMode = BodyMode.FULL_DUPLEX
    response: BodyMode = BodyMode.FULL_DUPLEX


# -- what Envoy says -------------------------------------------------------------------------------


def kind_of(message: pb.ProcessingRequest) -> str:
    """Returns one of the constants above; empty: a message that this version does not know."""
    return str(message.WhichOneof("request") or "")


def modes_of(first: pb.ProcessingRequest) -> Modes:
    """Raises ProtocolError where a mode lets no decision be made, or no record be kept."""
    if not first.HasField("protocol_config"):
        return Modes()
    config = first.protocol_config
    modes = Modes(BodyMode(config.request_body_mode), BodyMode(config.response_body_mode))
    if modes.request not in (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX):
        raise ProtocolError(f"request_body_mode {modes.request.name} shows no whole body: use FULL_DUPLEX_STREAMED")
    if modes.response not in (BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.FULL_DUPLEX):
        raise ProtocolError(f"response_body_mode {modes.response.name} shows no usage: use FULL_DUPLEX_STREAMED")
    return modes


def headers_of(headers: pb.HttpHeaders) -> dict[bytes, bytes]:
    """Returns headers by lower-case name, pseudo-headers (`:path`) among them; of repeated ones the first."""
    found: dict[bytes, bytes] = {}
    for header in headers.headers.headers:
        found.setdefault(header.key.lower().encode(), header.raw_value or header.value.encode())
    return found


def request_of(headers: dict[bytes, bytes], body: bytes = b"") -> Request:
    return Request(headers.get(b":method", b""), headers.get(b":path", b""), headers, body, keep_alive=True)


def subset_of(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Returns the endpoints that the proxy allows; None: all."""
    space = message.metadata_context.filter_metadata
    if _SUBSET_SPACE not in space or _SUBSET not in space[_SUBSET_SPACE].fields:
        return None
    value = space[_SUBSET_SPACE].fields[_SUBSET]
    if value.WhichOneof("kind") == "string_value":
        return frozenset(part.strip() for part in value.string_value.split(",") if part.strip())
    return frozenset(item.string_value for item in value.list_value.values)


def served_by(message: pb.ProcessingRequest) -> str | None:
    """Returns the endpoint that the response comes from, where the proxy says: in metadata, or in Envoy's attribute."""
    space = message.metadata_context.filter_metadata
    if _DESTINATION_SPACE in space and _SERVED in space[_DESTINATION_SPACE].fields:
        return space[_DESTINATION_SPACE].fields[_SERVED].string_value or None
    return attribute(message, "upstream.address")


def attribute(message: pb.ProcessingRequest, name: str) -> str | None:
    """Returns one of the filter's `request_attributes` or `response_attributes`; None: not sent."""
    if _ATTRIBUTES not in message.attributes or name not in message.attributes[_ATTRIBUTES].fields:
        return None
    return message.attributes[_ATTRIBUTES].fields[name].string_value or None


def client_host(message: pb.ProcessingRequest) -> str:
    """Returns the address that Envoy takes for the client's, by the attribute `source.address`; empty: not sent."""
    return (attribute(message, "source.address") or "").rpartition(":")[0].strip("[]")


# -- what the picker answers -----------------------------------------------------------------------


def endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"{host}:{port}"


def decision(
    mode: BodyMode, where: str, headers: Headers, removed: Iterable[str], body: bytes, last: bool
) -> Iterator[pb.ProcessingResponse]:
    """Sends the request on to `where`: in full duplex the head first and then the body piece by piece, else as one.

    Args:
        last: No trailers follow the body.
    """
    common = pb.CommonResponse(
        header_mutation=_mutation({**headers, DESTINATION: where.encode()}, removed), clear_route_cache=True
    )
    metadata = struct_pb2.Struct()
    metadata.update({_DESTINATION_SPACE: {DESTINATION: where}})
    if mode is not BodyMode.FULL_DUPLEX:
        _replace(common, body)
        yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=common), dynamic_metadata=metadata)
        return
    yield pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common), dynamic_metadata=metadata)
    for common in _streamed(body, last):
        yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))


def response_headers(headers: Headers) -> pb.ProcessingResponse:
    common = pb.CommonResponse(header_mutation=_mutation(headers, ()))
    return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))


def response_body(mode: BodyMode, came: bytes, goes: bytes, last: bool) -> Iterator[pb.ProcessingResponse]:
    """Passes on `goes` in place of `came`: in full duplex as it likes, else as the one answer to each piece."""
    if mode is BodyMode.FULL_DUPLEX:
        commons = _streamed(goes, last) if goes or last else iter(())
    else:
        common = pb.CommonResponse()
        if mode is BodyMode.BUFFERED and came != goes:
            _replace(common, goes)
        elif came != goes:
            common.body_mutation.CopyFrom(pb.BodyMutation(body=goes) if goes else pb.BodyMutation(clear_body=True))
        commons = iter((common,))
    for common in commons:
        yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=common))


def nothing_to_change(kind: str) -> pb.ProcessingResponse:
    """Answers headers or trailers that may pass as they are."""
    answer = pb.TrailersResponse() if kind.endswith("trailers") else pb.HeadersResponse()
    return pb.ProcessingResponse(**{kind: answer})


def immediate(status: int, body: bytes, headers: Headers) -> pb.ProcessingResponse:
    """Answers with a response of the picker's own; the request goes nowhere."""
    response = pb.ImmediateResponse(body=body, headers=_mutation({"content-type": b"application/json", **headers}, ()))
    response.status.code = status
    response.details = "endpoint_picker"
    return pb.ProcessingResponse(immediate_response=response)


def _replace(common: pb.CommonResponse, body: bytes) -> None:
    """Of a buffered body: Envoy holds its length against the header (where it streams, it sends none)."""
    common.header_mutation.MergeFrom(_mutation({"content-length": b"%d" % len(body)}, ()))
    common.body_mutation.body = body


def _mutation(headers: Headers, removed: Iterable[str]) -> pb.HeaderMutation:
    option = base_pb2.HeaderValueOption
    return pb.HeaderMutation(
        set_headers=[
            option(
                header=base_pb2.HeaderValue(key=key, raw_value=value),
                append_action=option.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for key, value in headers.items()
        ],
        remove_headers=list(removed),
    )


def _streamed(body: bytes, last: bool) -> Iterator[pb.CommonResponse]:
    for start in range(0, len(body) or 1, MAX_PIECE_BYTES):
        end = start + MAX_PIECE_BYTES
        piece = pb.StreamedBodyResponse(body=body[start:end], end_of_stream=last and end >= len(body))
        yield pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=piece))
