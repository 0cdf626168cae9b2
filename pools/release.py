"""Says which distribution these files are of, the whole product's or a node's with the same files; and its version."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "greenserve"
NODE_DISTRIBUTION = "greenserve-node"  # with a node's dependencies: node/pyproject.toml


def installed() -> str:
    """Returns the distribution that these files are of: the whole product's, or else a node's."""
    for name in (DISTRIBUTION, NODE_DISTRIBUTION):
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return DISTRIBUTION


def version() -> str:
    """Returns the version of GreenServe that is installed here."""
    return metadata.version(installed())
