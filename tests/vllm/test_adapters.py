"""LoRA adapters of a real vLLM, loaded and unloaded as gateways do it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pools import wire
from pools.gateway.fleet.engine_adapters import NO_LORA, EngineAdapters
from pools.gateway.fleet.instance import Instance
from tests.fakes.fleet import FakeFleet

from . import tiny_lora
from .server import MODEL, VllmServer

RANK = 8


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """With places for two, started as agents start engines of a service that has adapters."""
    arguments = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 2}
    env = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    made = VllmServer(tiny_model, tmp_path_factory.mktemp("lora"), env, **arguments)
    yield made.start()
    made.stop()


def text(server: VllmServer, model: str) -> str:
    body = {"model": model, "prompt": "bana tike solu", "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    asked = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def listed(server: VllmServer) -> list[tuple[str, str | None]]:
    with urllib.request.urlopen(f"{server.url}/v1/models", timeout=30) as answer:
        return [(card["id"], card["parent"]) for card in json.load(answer)["data"]]


def instance(server: VllmServer) -> Instance:
    pool = wire.FleetPool(1, "here", "ALL", 1.0)
    return Instance(FakeFleet([server.url]).instance(server.url, 0), pool, 0, 0.0)


def test_adapters_are_loaded_serve_and_are_unloaded(server: VllmServer, tiny_model: Path, tmp_path: Path) -> None:
    names = ("legal", "medical")
    folders = {name: tiny_lora.make(tmp_path / name, tiny_model, RANK, seed) for seed, name in enumerate(names)}
    large = tiny_lora.make(tmp_path / "large", tiny_model, 4 * RANK)

    async def orders() -> list[str]:
        engines, here = EngineAdapters(), instance(server)
        try:
            found = [await engines.load(here, name, str(folders[name])) for name in names]
            found.append(await engines.load(here, "legal", str(folders["legal"])))  # which is there
            return [*found, await engines.load(here, "large", str(large)), await engines.load(here, "none", "/none")]
        finally:
            await engines.close()

    *loaded, too_large, missing = asyncio.run(orders())
    assert loaded == ["", "", ""]
    assert "rank" in too_large
    assert missing
    assert NO_LORA not in missing
    assert listed(server) == [(MODEL, None), ("legal", MODEL), ("medical", MODEL)]
    assert len({text(server, model) for model in (MODEL, *names)}) == 3

    async def back() -> list[str]:
        engines, here = EngineAdapters(), instance(server)
        try:
            return [await engines.unload(here, "legal"), await engines.unload(here, "legal")]
        finally:
            await engines.close()

    assert asyncio.run(back()) == ["", ""]
    assert listed(server) == [(MODEL, None), ("medical", MODEL)]
