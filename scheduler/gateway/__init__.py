"""The OpenAI-compatible data plane: raw asyncio protocols, no ORM, and no Redis on the request path.

protocol.py   one client connection: framing, limits, order, back-pressure
handlers.py   which path does what; keys; turns a request into a call
endpoint.py   what sets completions, chats, embeddings and responses apart
intake.py     a request's bytes to a call that can be placed, and its record
validation.py what a body may hold
routing.py    the class and the instance of a call
relay.py      one call from dispatch to record: attempts, relaying, the ending
upstream.py   connections to engines, pooled
turn.py       what is done once for all events of a turn of the loop: writes, records, timers
web.py        files and batches, relayed to the web process
sse.py        what a stream tells while it passes: tokens, gaps, usage
responses.py  the same of a stream of /v1/responses, whose events have names
records.py    the row of a call
backroom.py   the fleet's picture, the decision, the records and their tasks: behind every front door
picker/       the other front door: the same decision for fleets whose bytes flow through Envoy
siblings.py   gateways that share a port: one page of metrics for all
learned.py    what was learned, over restarts
model_tokenizers.py tokenizers, each in a process of its own
journal.py    rows on disk before the client sees the end; shipped to Redis later
fleet.py      what the gateway knows of the fleet, in memory
live.py       the background tasks that talk to Redis
workers.py    workers that registered themselves, and whether they answer; worker_hosts.py: where they may be
worker_desk.py where they register
metrics.py    /metrics
server.py     the parts put together, start and stop
"""
