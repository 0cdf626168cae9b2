"""Tells errors to people: a line or two with the remedy. The traceback goes to a log, or is shown when asked for."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from greenserve import env, packages
from pools import database_faults
from pools.masking import without

LOG_LIMIT_BYTES = 2**20


def explain(error: BaseException) -> str | None:
    """Returns what is wrong and the remedy, where the surroundings are at fault; None: the program itself may be.

    Errors are known by the names of their classes, since a command may run without Django, psycopg and Redis.
    """
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if words := database_faults.words_of(error):
        return f"{words}: {first}"
    if names & {"django.ProgrammingError", "psycopg.ProgrammingError"}:
        return f"the database lacks tables or columns; `greenserve up` brings it up to date: {first}"
    if names & {"django.InterfaceError", "django.DatabaseError", "psycopg.Error"}:
        return (
            "the database does not answer; start GreenServe first (`greenserve up`), or mend DATABASE_URL where you "
            f"run a server of your own: {first}"
        )
    if names & {"redis.RedisError", "kombu.OperationalError"}:
        return (
            "Redis does not answer; start GreenServe first (`greenserve up`), or mend REDIS_URL where you run a server "
            f"of your own: {first}"
        )
    if isinstance(error, ModuleNotFoundError) and packages.of_a_node():
        return f"this needs the package {error.name}: {packages.NODE_REMEDY}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give another path, or rights to this one"
    return None


@contextmanager
def in_plain_words(program: str, *, traceback_asked: bool = False) -> Iterator[None]:
    """Ends the program with a line or two and status 1 when an error comes out of this block; Ctrl-C gives 130."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone: nothing to tell it
        sys.exit(1)
    except Exception as error:
        config = env.read()
        if traceback_asked or config.debug:
            raise
        words = explain(error) or f"this should not have happened: {type(error).__name__}: {error}"
        words = without(words, config.secrets)
        sys.stderr.write(f"{program}: {words}\n{_kept(config)}\n")
        sys.exit(1)


def _kept(config: env.Env) -> str:
    """Appends the traceback of the error under way to a log, which begins anew when it is too large."""
    log = config.var_dir / "log" / "errors.log"
    said = without(f"{' '.join(sys.argv)}\n{traceback.format_exc()}\n", config.secrets)
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        full = log.exists() and log.stat().st_size > LOG_LIMIT_BYTES
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if full else os.O_APPEND)
        with os.fdopen(os.open(log, flags, 0o640), "a") as file:
            file.write(said)
    except OSError as error:
        return f"GREENSERVE_DEBUG=1 shows the traceback ({log} cannot be written: {error.strerror})."
    return f"The traceback is in {log}; GREENSERVE_DEBUG=1 shows it."
