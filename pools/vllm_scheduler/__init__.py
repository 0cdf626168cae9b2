"""GreenServe's scheduler for vLLM: least laxity first, and batches that keep an ITL limit. See docs/plugin.md.

And two KV connectors by which two engines serve one request, `block_store` on one node and `transfer` between nodes,
and `key_guard`, which asks for the engine's key. It runs inside vLLM's own process, so it needs nothing but Python and
vLLM (`transfer` also NIXL), and only `scheduler` and the connectors need vLLM: an import contract holds it to that.
Without `--scheduler-cls pools.vllm_scheduler.GreenServeScheduler` vLLM's scheduler is untouched.
"""

from __future__ import annotations

from typing import Any

SUPPORTED_VLLM = "0.32.0"
SCHEDULER_CLS = "pools.vllm_scheduler.GreenServeScheduler"
KEY_GUARD = "pools.vllm_scheduler.key_guard.KeyGuard"
SOCKET_VARIABLE = "GREENSERVE_SCHEDULER_SOCKET"  # where to be spoken to; unset: nowhere
SETTINGS_VARIABLE = "GREENSERVE_SCHEDULER"  # what to begin with: the fields of a `set` as JSON


def require(version: str) -> None:
    """Raises ImportError, with what to do, where vLLM is another than the one that this is made for."""
    if version.partition("+")[0] != SUPPORTED_VLLM:
        raise ImportError(
            f"GreenServe's plug-in is made for vLLM {SUPPORTED_VLLM}, and this is vLLM {version}: install "
            f"vllm=={SUPPORTED_VLLM}, or start the engine without --scheduler-cls and --kv-transfer-config."
        )


def __getattr__(name: str) -> Any:
    """Returns the scheduler's class by the name that vLLM asks for. It is imported only then, since it imports vLLM."""
    if name == "GreenServeScheduler":
        from .scheduler import GreenServeScheduler

        return GreenServeScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
