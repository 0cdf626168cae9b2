"""KV caches sent to an engine of another node by NIXL, chunk by chunk, while the rest is computed (docs/plugin.md)."""
