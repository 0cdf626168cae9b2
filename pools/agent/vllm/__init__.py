"""Real engines on a node: vLLM processes that the agent starts, watches, drains and ends.

`launch` says what is run, `engine_processes` runs and ends it, `engine_records` remembers it over the agent's own end,
`probe` speaks to it, `engine` is one engine's life in a thread of its own, `runtime` the port over all of them.
"""
