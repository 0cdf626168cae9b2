"""A trained encoder that says the same of every prompt, and takes as long as a test has it take."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from core.length_odds import LengthOdds
from core.ports import PermanentError


class FakeEncoder:
    """Fills the port LengthProxyModel. `batches`: the prompts that it was shown together.

    Args:
        said: None: it cannot say.
        services: None: it serves all.
    """

    def __init__(self, said: LengthOdds | None = None, services: Collection[str] | None = None) -> None:
        self.said, self.services, self.error = said, services, ""
        self.batches: list[list[str]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def serves(self, service: str) -> bool:
        return self.services is None or service in self.services

    def predict(self, services: Sequence[str], prompts: Sequence[str]) -> Sequence[LengthOdds | None]:
        self.batches.append(list(prompts))
        assert self.goes_on.wait(10.0)
        if self.error:
            raise PermanentError(self.error)
        return [self.said if self.serves(service) else None for service in services]
