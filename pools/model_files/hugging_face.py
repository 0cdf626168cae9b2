"""A model's shape from its config.json, in a folder, a file, a document, or a repository of the Hugging Face hub."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from core.engine.model_config import BadConfig, shape_of_config
from core.engine.model_shape import ModelParams

HUB = "https://huggingface.co"
_NAME, _TOKENIZER = "config.json", "tokenizer.json"
_CACHE_DTYPE = "--kv-cache-dtype"
_HUB_TIMEOUT_S = 10.0
_HOSTS, _HOSTS_UNDER = ("huggingface.co",), (".huggingface.co", ".hf.co")  # these keep its files
_MOST_REDIRECTS = 5
MOST_BYTES = 1_000_000
MOST_KEY = 200  # characters, of which today's models need some ninety
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
# Of models whose own code is not run: they have the shape of a type that transformers has.
_SAME_SHAPE = {"kimi_k2": "deepseek_v3", "deepseek_v32": "deepseek_v3"}


def shape_from(place: str, kv_bits: float | None = None) -> ModelParams:
    """Reads a shape from a folder with a config.json, such a file, or a repository `owner/name` of the hub.

    Blocks; from the hub for up to 10 s. Raises BadConfig: nothing there, not reachable, or nothing to compute with.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        path /= _NAME
    if path.is_file():
        return shape_of_document(read(path), path.parent.name or place, kv_bits)
    if not _REPOSITORY.fullmatch(place):
        raise BadConfig("config", f"'{place}' is no folder with a {_NAME}, no such file, and no owner/name of the hub")
    return shape_of_document(fetch(place), place, kv_bits)


def kv_bits_of(arguments: Iterable[object]) -> float | None:
    """Returns the bits of a cached element that vLLM's arguments set; None: they leave it to the model."""
    words = [str(word) for word in arguments]
    values = [after for word, after in pairwise(words) if word == _CACHE_DTYPE]
    values += [word.removeprefix(f"{_CACHE_DTYPE}=") for word in words if word.startswith(f"{_CACHE_DTYPE}=")]
    return 8.0 if values and values[-1].startswith("fp8") else None


def shape_of_document(document: Mapping[str, Any], name: str = "", kv_bits: float | None = None) -> ModelParams:
    """Makes the shape of a config.json that was read already. No code of the model is run. Raises BadConfig."""
    try:
        found = shape_of_config(_with_defaults(document), name, kv_bits)
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:  # a list where a number belongs
        raise BadConfig("config", f"a field has a value that no model has ({error})") from None
    if len(found.key) > MOST_KEY:
        raise BadConfig("config", "its numbers are beyond those of any model")
    return found


def parse(text: str | bytes) -> dict[str, Any]:
    """Reads the text of a config.json. Raises BadConfig."""
    if len(text) > MOST_BYTES:
        raise BadConfig("config", f"longer than {MOST_BYTES:,} bytes: not a {_NAME}")
    try:
        found = json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise BadConfig("config", f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadConfig("config", "not an object of fields")
    return found


def _not_json(word: str) -> float:
    raise ValueError(f"{word} is no number")


def tokenizer_beside(place: str) -> Path | None:
    """Returns the tokenizer.json that lies in a folder, or beside a file; None: there is none."""
    path = Path(place).expanduser()
    found = (path if path.is_dir() else path.parent) / _TOKENIZER
    return found.absolute() if path.exists() and found.is_file() else None


def read(path: Path) -> dict[str, Any]:
    """Reads a config.json, or the one in a folder. Raises BadConfig."""
    if path.is_dir():
        path /= _NAME
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise BadConfig("config", f"{path} cannot be read: {error.strerror}") from None


def fetch(repository: str) -> dict[str, Any]:
    """Reads the config.json of a repository `owner/name` of the hub. Blocks for up to 10 s. Raises BadConfig."""
    if not _REPOSITORY.fullmatch(repository):
        raise BadConfig("config", f"'{repository}' is no owner/name of the hub")
    import httpx2  # every process that knows model cards imports this module, and few ask the hub

    address = f"{HUB}/{repository}/resolve/main/{_NAME}"
    try:
        return parse(_download(address))
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        why = (
            "no such repository, or one that needs an account" if status in (401, 403, 404) else f"it answers {status}"
        )
        raise BadConfig("config", f"{repository}: {why}; take its {_NAME} from elsewhere") from None
    except httpx2.HTTPError as error:
        why = f"the hub could not be asked ({error})"
        raise BadConfig("config", f"{repository}: {why}; take its {_NAME} from elsewhere") from None


def _download(address: str) -> bytes:
    """Returns what is there, as far as a config.json may go: whoever owns the repository says how much it is."""
    import httpx2

    found, until_s = b"", time.monotonic() + _HUB_TIMEOUT_S
    for _ in range(_MOST_REDIRECTS + 1):
        with httpx2.stream("GET", address, timeout=_HUB_TIMEOUT_S, follow_redirects=False) as answer:
            if answer.has_redirect_location:
                address = _followed(address, answer.headers["location"])
                continue
            answer.raise_for_status()
            for part in answer.iter_bytes():
                found += part
                if len(found) > MOST_BYTES:
                    break
                if time.monotonic() > until_s:
                    raise httpx2.ReadTimeout(f"not all of it came within {_HUB_TIMEOUT_S:g} s")
        return found
    raise httpx2.TooManyRedirects(f"more than {_MOST_REDIRECTS} redirects")


def _followed(address: str, location: str) -> str:
    """Returns where a redirect leads, if that is the hub itself or where it keeps files. Raises httpx2.HTTPError."""
    import httpx2

    host = location
    try:
        found = urljoin(address, location)
        parts = urlsplit(found)
        host = parts.hostname or ""
        own = host in _HOSTS or host.endswith(_HOSTS_UNDER)
        if parts.scheme == "https" and parts.port in (None, 443) and own:
            return found
    except ValueError:
        pass
    raise httpx2.HTTPError(f"it redirects to {host[:100]!r}, which is no host of the hub over https")


def _with_defaults(document: Mapping[str, Any]) -> dict[str, Any]:
    # Says at each import that there is no PyTorch, which reading a configuration does not need.
    logging.getLogger("transformers").addFilter(lambda record: record.levelno >= logging.ERROR)
    from transformers import AutoConfig  # a second to import: only where a model is read

    fields = dict(document)
    kind = str(fields.pop("model_type", "") or "")
    if not kind:
        raise BadConfig("model_type", "missing: the file is no model's configuration")
    kind = _SAME_SHAPE.get(kind, kind)
    try:
        config = AutoConfig.for_model(kind, **fields)
    except ValueError:
        return {**document}  # transformers has no such type; what can be computed decides
    except Exception as error:  # a field of a kind that the type's own class chokes on
        raise BadConfig("config", f"not a configuration of a {kind}: {error}") from None
    return {**_plain(config), "dtype": document.get("dtype") or document.get("torch_dtype")}


_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim")


def _plain(config: Any) -> dict[str, Any]:
    """Returns a configuration's fields under their usual names too (GPT-2's `n_embd` is its `hidden_size`)."""
    fields = {**config.to_dict(), **{name: value for name in _FIELDS if (value := getattr(config, name, None))}}
    if (text := getattr(config, "text_config", None)) is not None:
        fields["text_config"] = _plain(text)
    return fields
