"""Defines the frames that gateways and the predictor's process send each other over its Unix socket.

A frame is its length, four bytes with the highest first, and a message in MessagePack. A gateway sends `Ask` and
`Lesson`; each `Ask` gets an `Answer` with its number, or none when its time is over. Both ends are of one release.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from core.length_odds import LengthOdds
from core.ports import RequestFeatures

MOST_CHARACTERS = 8_192  # of a prompt that are read
MOST_FRAME_BYTES = 8 * MOST_CHARACTERS  # characters take four bytes at most; the rest is small
_HEAD = 4
_ENCODER = msgspec.msgpack.Encoder()


class BadFrame(ValueError):
    """The other side sends what is no frame, or one that is too large."""


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """Holds what a request shows beside its text; fields as of RequestFeatures."""

    chat: bool
    at_s: float
    text_bytes: int
    messages: int
    sequences: int
    max_tokens: int | None
    last_role: str | None
    last_bytes: int | None
    has_system: bool | None
    has_stop: bool | None
    temperature: float | None
    wants_json: bool | None
    tools_bytes: int | None
    has_question: bool | None
    has_code: bool | None
    digit_share: float | None
    lines: int | None
    detailed: bool
    image_tokens: int


_SHOWN = Shown.__struct_fields__


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A prompt whose answer is to be predicted.

    `number`: the gateway's own, of this connection. `until_s`: monotonic time, which is one on a host; nobody waits
    after that. `texts`: see `cut`. `borders`: between the classes that the gateway decides by, as of LengthOdds.
    """

    number: int
    until_s: float
    service: str
    tenant_id: int | None
    prompt_tokens: int
    texts: Sequence[str]
    shown: Shown
    borders: tuple[int, ...] = ()


class Lesson(msgspec.Struct, frozen=True, array_like=True, tag="lesson"):
    """The request of an `Ask` has ended: its prompt's tokens, and those of one of its answers."""

    number: int
    prompt_tokens: int
    output_tokens: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """`odds` None: no predictor knows enough. `unread`: the trained encoder was behind, and was not asked."""

    number: int
    odds: LengthOdds | None
    unread: bool = False


_REQUESTS = msgspec.msgpack.Decoder(Ask | Lesson)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


def frame(message: Ask | Lesson | Answer) -> bytes:
    """Raises ValueError for a text that is no Unicode."""
    body = _ENCODER.encode(message)
    return len(body).to_bytes(_HEAD) + body


def request_of(body: bytes) -> Ask | Lesson:
    """Raises BadFrame."""
    try:
        found: Ask | Lesson = _REQUESTS.decode(body)
    except msgspec.DecodeError as error:
        raise BadFrame(f"no request of a gateway: {error}") from None
    return found


def answer_of(body: bytes) -> Answer:
    """Raises BadFrame."""
    try:
        return _ANSWERS.decode(body)
    except msgspec.DecodeError as error:
        raise BadFrame(f"no answer of the predictor: {error}") from None


class Frames:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the bodies that are whole now. Raises BadFrame."""
        left = self._left
        left += data
        begins = 0
        while len(left) - begins >= _HEAD:
            size = int.from_bytes(left[begins : begins + _HEAD])
            if size > MOST_FRAME_BYTES:
                raise BadFrame(f"a frame of {size} bytes; {MOST_FRAME_BYTES} are the most")
            ends = begins + _HEAD + size
            if len(left) < ends:
                break
            yield bytes(left[begins + _HEAD : ends])
            begins = ends
        del left[:begins]


def shown_of(features: RequestFeatures) -> Shown:
    return Shown(*[getattr(features, name) for name in _SHOWN])


def features_of(ask: Ask) -> RequestFeatures:
    """Returns what the gateway had, without the digest, which holds in its process alone."""
    shown = {name: getattr(ask.shown, name) for name in _SHOWN}
    return RequestFeatures(tenant_id=ask.tenant_id, **shown)


def cut(texts: Sequence[str], most: int = MOST_CHARACTERS) -> Sequence[str]:
    """Returns a prompt's beginning and end, `most` characters together: what is asked for stands in one of the two."""
    if sum(map(len, texts)) <= most:
        return texts
    half = most // 2
    begins = _first(texts, half)
    ends = [text[::-1] for text in _first([text[::-1] for text in reversed(texts)], half)]
    return [*begins, *reversed(ends)]


def _first(texts: Sequence[str], most: int) -> list[str]:
    found = []
    for text in texts:
        if most <= 0:
            break
        found.append(text[:most])
        most -= len(text)
    return found
