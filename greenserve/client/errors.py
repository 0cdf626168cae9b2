"""Errors of a call: no answer, an answer that is none of GreenServe's, or a problem that the API names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

TYPE = "urn:greenserve:problem:"


class GreenServeError(Exception):
    """Any error of this client."""


class NoAnswerError(GreenServeError):
    """No answer came: no connection, or a time limit.

    Attributes:
        sent: whether the request may have reached the API, so that it may have been carried out.
    """

    def __init__(self, words: str, *, sent: bool) -> None:
        super().__init__(words)
        self.sent = sent


class UnexpectedAnswerError(GreenServeError):
    """An answer that is not as GreenServe's API answers: another server's, or another version's.

    Attributes:
        status: the answer's HTTP status.
    """

    def __init__(self, words: str, *, status: int) -> None:
        super().__init__(words)
        self.status = status


class JobError(GreenServeError):
    """A job ended otherwise than done, or not in time.

    Attributes:
        uid: the job's.
        state: its state when the client last looked.
    """

    def __init__(self, words: str, *, uid: str, state: str) -> None:
        super().__init__(words)
        self.uid, self.state = uid, state


class FieldError(msgspec.Struct, frozen=True):
    """One field of a request that is wrong; `2.site` is the field `site` of a list's third item."""

    field: str
    detail: str
    remedy: str | None = None

    def __str__(self) -> str:
        words = f"{self.field}: {self.detail}" if self.field else self.detail
        return f"{words} {self.remedy}" if self.remedy else words


class ProblemDocument(msgspec.Struct, frozen=True):
    """The API's words on an error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str | None = None
    remedy: str | None = None
    errors: tuple[FieldError, ...] = ()


class ProblemError(GreenServeError):
    """The API refused a request, and says why.

    Attributes:
        document: all that the API says.
        retry_after_s: how many seconds to wait before another try, where the API says so.
    """

    kind: ClassVar[str] = "error"

    def __init__(self, document: ProblemDocument, retry_after_s: float | None = None) -> None:
        lines = [str(error) for error in document.errors] or [document.detail]
        super().__init__(" ".join([*lines, *([document.remedy] if document.remedy else [])]))
        self.document, self.retry_after_s = document, retry_after_s

    @property
    def status(self) -> int:
        return self.document.status

    @property
    def request_id(self) -> str | None:
        """The request's id, which the product's log and audit trail have too."""
        return self.document.request_id

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """Returns the fields that are wrong; empty where the API names none."""
        return self.document.errors


class InvalidError(ProblemError):
    """400: a value, a field or a filter is wrong; `errors` names them."""

    kind = "invalid"


class NotSignedInError(ProblemError):
    """401: no token, or none that is known."""

    kind = "not_authenticated"


class NotAllowedError(ProblemError):
    """403: the person or the token lacks the right."""

    kind = "permission_denied"


class NotFoundError(ProblemError):
    """404: there is no such row that the caller may see."""

    kind = "not_found"


class ConflictError(ProblemError):
    """409: another row stands in the way, or a state does."""

    kind = "conflict"


class StaleError(ProblemError):
    """412: somebody else changed the row since it was read. Read it again and change what is there now."""

    kind = "precondition_failed"


class UnprocessableError(ProblemError):
    """422: the Idempotency-Key was used for another request."""

    kind = "unprocessable"


class RateLimitedError(ProblemError):
    """429: too many requests in a minute; `retry_after_s` says how long to wait."""

    kind = "throttled"


class UnavailableError(ProblemError):
    """503: a service that the API needs does not answer now."""

    kind = "unavailable"


BY_STATUS: Mapping[int, type[ProblemError]] = {
    400: InvalidError,
    401: NotSignedInError,
    403: NotAllowedError,
    404: NotFoundError,
    409: ConflictError,
    412: StaleError,
    422: UnprocessableError,
    429: RateLimitedError,
    503: UnavailableError,
}
BY_TYPE: Mapping[str, type[ProblemError]] = {TYPE + error.kind: error for error in BY_STATUS.values()}


def problem_of(status: int, content: bytes, retry_after_s: float | None, where: str) -> GreenServeError:
    """Returns the error that an answer of 300 and more stands for: by its problem's type, or else by its status."""
    try:
        document = msgspec.json.decode(content, type=ProblemDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        words = (
            f"{where} answers {status}, and not as GreenServe's API does. Check the address and what stands before it."
        )
        return UnexpectedAnswerError(words, status=status)
    found: Any = BY_TYPE.get(document.type) or BY_STATUS.get(status, ProblemError)
    error: ProblemError = found(document, retry_after_s)
    return error
