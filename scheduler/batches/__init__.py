"""OpenAI's Files and Batch API: work that may wait runs when the grid is cleanest, and yields to all other.

tenant_files.py    a tenant's files, in rows
batch_requests.py  what clients ask for: create, retrieve, list, cancel; the shapes that they get
input_lines.py     an input file's lines, checked (pure)
lifecycle.py       a batch's way from one status to the next; each step one transaction
planning.py        rows -> core.controllers.request.deferral -> a Decision
batch_runner.py    sends lines while they are to run, as many at a time as yields to others
sending.py         lines through the gateway, like any client's requests
results.py         what a request's end means for its line (pure)
batch_keys.py      keys for that, which nobody has to store
"""
