#!/usr/bin/env python
"""Django's command line; `greenserve --help` shows the product's own."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "greenserve.settings")
    from django.core.management import execute_from_command_line

    from greenserve.plain_errors import in_plain_words

    with in_plain_words("manage.py", traceback_asked="--traceback" in sys.argv):
        execute_from_command_line(sys.argv)
