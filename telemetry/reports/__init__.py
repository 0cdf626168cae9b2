"""Reports that finance can sign: what was used, emitted and paid in a period, traced back to the meters.

`asked.py` reads what somebody asks for; `settled_lines.py` and `source.py` alone know the ledger's tables; the rest is
values: `totals.py` adds blocks of lines up, `market.py` applies contracts, the writers turn both into files,
`reconcile.py` reads the files back and holds them against the meters, `files.py` makes a report of all that, and
`making.py` keeps them. docs/reports.md explains every column.
"""
