"""Lets uv install from where pip's settings say: `pip config list | python scripts/uv_pip.py UV install ...`.

uv takes a tenth of pip's time, and unpacks once what several environments have. It reads no setting of pip's. What is
set for uv itself goes first.
"""

from __future__ import annotations

import ast
import os
import sys

SECTIONS = ("global", "install", ":env:")  # of pip's settings; what a later one says goes first
# The variable that uv has for it, and what stands between values.
AS_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
# Hashes say which file is meant, whichever index has it.
ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def settings(listed: str) -> dict[str, str]:
    """Returns pip's settings by name, of what `pip config list` printed."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value))
    return {key: value for section in SECTIONS for key, value in found[section].items()}


def variables(pip: dict[str, str]) -> dict[str, str]:
    """Returns the environment variables by which uv does the same."""
    return ALWAYS | {AS_UV[key][0]: AS_UV[key][1].join(value.split()) for key, value in pip.items() if key in AS_UV}


def options(pip: dict[str, str]) -> list[str]:
    """Returns the options for which uv has no variable."""
    return ["--no-index"] if pip.get("no-index", "").lower() in ("1", "true", "yes", "on") else []


def main() -> None:
    uv, command, *arguments = sys.argv[1:]
    pip = settings(sys.stdin.read())
    os.execve(uv, [uv, "pip", command, *options(pip), *arguments], variables(pip) | dict(os.environ))


if __name__ == "__main__":
    main()
