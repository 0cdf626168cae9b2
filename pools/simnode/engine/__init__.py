"""One simulated engine: vLLM's HTTP, batching, KV cache and metrics."""
