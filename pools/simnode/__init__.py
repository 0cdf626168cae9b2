"""The simulated node: a process that stands in for a machine, its GPUs and its engine processes.

Its GPUs draw what the engine model says and count it; its engines speak vLLM's HTTP surface and give their tokens
when the engine model says. Everything else (agent, gateway, scheduler) treats it like a real node.
"""
