"""Django's command line: `python -m greenserve.manage`, or `manage.py` in a checkout."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")
    from django.core.management import execute_from_command_line

    from greenserve.plain_errors import in_plain_words

    with in_plain_words("manage.py", traceback_asked="--traceback" in sys.argv):
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
