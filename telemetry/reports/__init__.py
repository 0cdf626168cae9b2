"""Reports that finance can sign: what was used, emitted and paid in a period, traced back to the meters.

`asked.py` reads what somebody asks for; `source.py` alone knows the ledger's tables and gives lines; the rest is
values: `totals.py` adds lines up, `market.py` applies contracts, the writers turn both into files, `reconcile.py` reads
the files back and holds them against the meters, `files.py` makes a report's files of all that, and `making.py` keeps
them. docs/reports.md explains every column.
"""
