"""Reports that finance can sign: what was used, emitted and paid in a period, traced back to the meters.

`settled_lines.py` and `ledger_source.py` alone know the ledger's tables; the rest is values, in
`telemetry/report_values/`: `report_request.py` reads what somebody asks for, `totals.py` adds blocks of lines up,
`market.py` applies contracts. `writers/` turns both into files: `read_back.py` reads these back and checks them against
the meters, `files.py` makes a report of all that. `report_jobs.py` keeps them. docs/reports.md explains every column.
"""
