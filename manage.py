#!/usr/bin/env python
"""Django's command line; `greenserve --help` shows the product's own."""

from greenserve.manage import main

if __name__ == "__main__":
    main()
