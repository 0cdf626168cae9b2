"""The base of all messages; it encodes them and reads them again."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec


class Message(msgspec.Struct, frozen=True, omit_defaults=False):
    """Base of all messages. `packed`: they travel as MessagePack."""

    packed: ClassVar[bool] = False


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    return msgspec.msgpack.encode(message) if message.packed else msgspec.json.encode(message)


def decode(data: bytes | str, kind: type[M]) -> M:
    """Raises msgspec.DecodeError (ValidationError names the field) when `data` is not a `kind`."""
    if not kind.packed:
        return msgspec.json.decode(data, type=kind)
    if isinstance(data, str):
        raise msgspec.DecodeError("MessagePack is bytes, not text")
    return msgspec.msgpack.decode(data, type=kind)
