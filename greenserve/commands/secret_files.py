"""Secrets of commands come from files or from standard input: all on a machine can read a command line."""

from __future__ import annotations

import click


def secret_of_file(name: str) -> str:
    """Returns what stands in a file, `-` for standard input. Raises click.BadParameter."""
    try:
        with click.open_file(name) as file:
            found = str(file.read()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{name} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    if not found:
        raise click.BadParameter(f"there is nothing in {name}")
    return found


token_option = click.option(
    "--token-file",
    "token",
    type=secret_of_file,
    metavar="FILE",
    help="File with an access token, - for standard input; GREENSERVE_TOKEN if it is not given.",
)
