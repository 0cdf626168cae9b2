"""The agent: one Celery worker a node. It brings its node to the desired state, locks its clocks, and reports.

No Django and no database here: it talks to the scheduler through Redis (`pools.wire`) and to its node through the
ports of `core.ports`.
"""
