"""Reads what a server's power is switched with from files of the operator's, never from the database.

They lie in `power/` of the folder of secrets, each for its owner alone to read:

| File | Contents |
| --- | --- |
| NODE, else `default` | of Redfish `USER:PASSWORD`; of a webhook the secret that its requests are signed with |
| `ca.pem` | who signed the certificates of BMCs; without it, those that the system trusts |
"""

from __future__ import annotations

import ssl
from pathlib import Path

from core.ports import PermanentError
from telemetry.providers.secrets import Secret, SecretsError, private_text

FOLDER, ANY_NODE, AUTHORITY = "power", "default", "ca.pem"


def secret_of(folder: Path, node: str) -> Secret:
    """Returns a node's secret. `folder`: of all secrets. Raises PermanentError: there is none that can be used."""
    own, shared = folder / FOLDER / node, folder / FOLDER / ANY_NODE
    try:
        text = private_text(own if own.exists() or not shared.exists() else shared).strip()
    except SecretsError as error:
        raise PermanentError(f"{node}'s power: {error}") from None
    if not text or not text.isprintable():
        raise PermanentError(f"{node}'s power: {own} must have one line")
    return Secret(text)


def trust(folder: Path) -> ssl.SSLContext:
    """Returns a context that believes certificates of BMCs. Raises PermanentError: the file cannot be used."""
    path = folder / FOLDER / AUTHORITY
    try:
        return ssl.create_default_context(cafile=path if path.exists() else None)
    except (OSError, ssl.SSLError) as error:
        raise PermanentError(f"{path} is no certificate that can be used: {error}") from None
