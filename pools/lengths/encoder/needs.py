"""Says whether what a piece of work needs of the extra `greenserve[learned]` is installed."""

from __future__ import annotations

from importlib.util import find_spec

REMEDY = 'pip install "greenserve[learned]"'
TO_TRAIN = ("torch", "onnx", "onnxruntime")
TO_SERVE = ("onnxruntime",)


class LearnedMissing(RuntimeError):
    """A package of the extra is not installed; the product goes on without an encoder."""


def require(packages: tuple[str, ...], what_for: str) -> None:
    """Raises LearnedMissing, with the remedy, unless all of these packages are installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise LearnedMissing(f"{what_for} needs {', '.join(missing)}: {REMEDY}")
