"""Decides which further fields of a client's body may reach an engine, and at which hosts its media may be.

An engine does what its fields say: it reads files and addresses, runs templates, takes over KV caches. So what no
endpoint has a field for is refused by its name, and an operator can let more through.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from pools.registration.worker_hosts import WorkerHosts, from_argument

from ..errors import ApiError
from .bodies import NOTHING, ChatBody, ChatPart, CompletionBody, ContentPart

XARGS = "vllm_xargs"
_OWN_XARGS = frozenset({"sim_output_tokens"})  # of simulated engines; real ones do not know it
# With these a template is no longer the model's own, or the engine's loop waits for it (CVE-2025-61620, -62426).
_NO_TEMPLATE_KWARGS = frozenset({"chat_template", "tokenize"})
_URL_FIELDS = ("image_url", "audio_url", "video_url", "file_url")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_MEDIA = msgspec.json.Decoder(str | dict[str, msgspec.Raw] | None)
_TEXT = msgspec.json.Decoder(str | None)


@dataclass(frozen=True, slots=True)
class ClientFields:
    """`more`: names of fields, or `vllm_xargs.NAME`. `media_hosts`: where engines may fetch what a client names."""

    more: frozenset[str] = frozenset()
    media_hosts: WorkerHosts = WorkerHosts("")  # noqa: RUF009 - nobody changes it

    def without(self, body: bytes, shape: type[msgspec.Struct]) -> bytes:
        """Returns a body without the fields that the operator lets through and `shape` does not know.

        Raises msgspec's errors.
        """
        unknown = self.more.difference(shape.__struct_fields__)
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({name: value for name, value in fields.items() if name not in unknown})

    def check(self, body: CompletionBody | ChatBody) -> None:
        """Raises ApiError 400 naming the field."""
        if body.vllm_xargs is not NOTHING:
            self._check_members(XARGS, _members(XARGS, body.vllm_xargs))
        if isinstance(body, ChatBody):
            if body.chat_template_kwargs is not NOTHING:
                name = "chat_template_kwargs"
                refused = _NO_TEMPLATE_KWARGS.intersection(_members(name, body.chat_template_kwargs))
                for member in sorted(refused):
                    raise not_passed_on(f"{name}.{member}", name)
            for place, message in enumerate(body.messages or ()):
                if isinstance(message.content, list):
                    self._check_parts(message.content, f"messages[{place}].content")

    def _check_members(self, field: str, members: Iterable[str]) -> None:
        for member in members:
            if member not in _OWN_XARGS and f"{field}.{member}" not in self.more:
                raise not_passed_on(f"{field}.{member}", field)

    def _check_parts(self, parts: Sequence[ChatPart | ContentPart | str], path: str) -> None:
        for place, part in enumerate(parts):
            if isinstance(part, str):
                continue
            for field in _URL_FIELDS:
                raw = getattr(part, field)
                if len(raw):
                    self._check_media(raw, f"{path}[{place}].{field}")

    def _check_media(self, raw: msgspec.Raw, path: str) -> None:
        try:
            given = _MEDIA.decode(raw)
            url = _TEXT.decode(given.get("url", b"null")) if isinstance(given, dict) else given
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ApiError(400, f"'{path}' must be a text, or an object with a 'url'.", param="messages") from None
        if url is not None and not url.startswith("data:") and not self._may_fetch(url):
            raise ApiError(
                400,
                f"'{path}' must be a data: URL: engines fetch nothing from that host. The operator can allow hosts.",
                param="messages",
                code="media_not_allowed",
            )

    def _may_fetch(self, url: str) -> bool:
        """Says whether an http(s) URL is at a host that is allowed, whoever reads it: oddly written ones are not."""
        if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
            return False
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and "@" not in parts.netloc and self.media_hosts.allow(host)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options for `from_arguments`."""
    parser.add_argument(
        "--media-hosts",
        type=from_argument,
        default=WorkerHosts(""),
        help="where engines may fetch what clients name, as for --worker-hosts; without it only data: URLs pass",
    )
    parser.add_argument(
        "--pass-fields",
        type=_names,
        default=frozenset(),
        help="fields that clients may send to engines beside the usual ones, or vllm_xargs.NAME; commas between",
    )


def from_arguments(given: argparse.Namespace) -> ClientFields:
    return ClientFields(given.pass_fields, given.media_hosts)


def _names(words: str) -> frozenset[str]:
    return frozenset(filter(None, (word.strip() for word in words.split(","))))


def not_passed_on(path: str, param: str) -> ApiError:
    return ApiError(
        400,
        f"'{path[:100]}' is not passed on to engines: leave it out. The operator can allow it.",
        param=param[:100],
        code="unknown_field",
    )


def _members(field: str, raw: msgspec.Raw) -> dict[str, msgspec.Raw]:
    try:
        return _MEMBERS.decode(raw) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, f"'{field}' must be an object.", param=field) from None
