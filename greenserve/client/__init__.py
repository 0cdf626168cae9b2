"""A typed client of the REST API, for programs: `Client`, and `AsyncClient` for asyncio.

It needs httpx2 and msgspec, and nothing else of GreenServe. docs/client.md is its guide. `make client` makes
`models.py`, `resources.py` and `async_resources.py` from the API's OpenAPI document.
"""

from .calls import Retries
from .client import AsyncClient, Client
from .errors import (
    ConflictError,
    FieldError,
    GreenServeError,
    InvalidError,
    JobError,
    NoAnswerError,
    NotAllowedError,
    NotFoundError,
    NotSignedInError,
    ProblemDocument,
    ProblemError,
    RateLimitedError,
    StaleError,
    UnavailableError,
    UnexpectedAnswerError,
    UnprocessableError,
)

__all__ = [
    "AsyncClient",
    "Client",
    "ConflictError",
    "FieldError",
    "GreenServeError",
    "InvalidError",
    "JobError",
    "NoAnswerError",
    "NotAllowedError",
    "NotFoundError",
    "NotSignedInError",
    "ProblemDocument",
    "ProblemError",
    "RateLimitedError",
    "Retries",
    "StaleError",
    "UnavailableError",
    "UnexpectedAnswerError",
    "UnprocessableError",
]
