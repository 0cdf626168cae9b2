"""Weights that are fetched ahead of need, with a program in the place of `hf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.engine.engine_launch import EngineLaunch
from pools.agent.vllm.launch import VllmOptions
from pools.agent.vllm.weights import WeightCache, weights_are_here
from tests.fakes.simnode import eventually

# Fetches what it is given into the folder of the environment, waiting for a file `go`; `fake/gone` is not there.
HF = """#!/bin/sh
test "$1 $2" = "download fake/gone" && { echo "RepositoryNotFoundError: 404"; exit 1; }
blobs="$HF_HOME/hub/models--$(echo "$2" | sed 's#/#--#')/blobs"
mkdir -p "$blobs"
head -c 3000000 /dev/zero > "$blobs/part"
echo "$@" > "$HF_HOME/asked"
test -n "$HF_TOKEN" && echo "$HF_TOKEN" > "$HF_HOME/token"
while test ! -e "$HF_HOME/go"; do sleep 0.05; done
"""
ONE, TWO = EngineLaunch("fake/one", arguments=("--revision", "v1")), EngineLaunch("fake/two")


@pytest.fixture
def options(tmp_path: Path) -> VllmOptions:
    program = tmp_path / "hf"
    program.write_text(HF)
    program.chmod(0o755)
    return VllmOptions(tmp_path / "vllm", tmp_path / "engines", keep_free_bytes=0.0)


@pytest.fixture
def cache_of() -> Iterator[Callable[[VllmOptions], WeightCache]]:
    made: list[WeightCache] = []

    def make(options: VllmOptions) -> WeightCache:
        made.append(WeightCache(options, {"PATH": "/usr/bin:/bin", "HF_TOKEN": "t", "BROKER": "secret"}))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


def says(cache: WeightCache, *wanted: EngineLaunch) -> str:
    cache.want(wanted)
    return "; ".join(cache.notices())


def test_weights_come_one_model_after_the_other_and_what_has_come_is_reported(
    options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache]
) -> None:
    cache, home = cache_of(options), options.folder / "weights"
    assert says(cache, ONE, TWO) == "weights of fake/one are being fetched: 0.0 GB are here"
    asked = home / "asked"
    eventually(lambda: asked.exists() and asked.read_text(), 20.0, "call of hf")
    assert asked.read_text().startswith("download fake/one --revision v1 --exclude original/* ")
    assert (home / "token").read_text() == "t\n"
    cache._counted = (0.0, 0)
    assert cache._bytes() == 3_000_000
    (home / "go").touch()
    eventually(lambda: not says(cache, ONE, TWO), 20.0, "end of both")
    assert asked.read_text().startswith("download fake/two --exclude")
    asked.unlink()
    assert says(cache, ONE, TWO) == ""
    assert not asked.exists(), "what is here is not fetched again"


def test_one_that_cannot_be_had_is_reported_and_does_not_delay_others(
    options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache]
) -> None:
    cache, gone = cache_of(options), EngineLaunch("fake/gone")
    eventually(lambda: "fake/two are being fetched" in says(cache, gone, TWO), 20.0, "next one")
    assert "weights of fake/gone are not fetched: RepositoryNotFoundError: 404" in says(cache, gone, TWO)
    assert "fake/gone" not in says(cache, TWO), "nobody needs them any more"


def test_fetching_ends_when_nobody_needs_the_weights(
    options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache]
) -> None:
    cache = cache_of(options)
    says(cache, ONE)
    process = cache._process
    assert process is not None
    assert says(cache) == ""
    assert not process.alive


def test_disk_is_not_filled(options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache]) -> None:
    cache = cache_of(replace(options, keep_free_bytes=1e18))
    assert "1000000000 are to be kept free" in says(cache, ONE, TWO)
    assert cache._process is None


@pytest.mark.parametrize("weights", ["/models/llama", ""])
def test_nothing_is_fetched_when_the_weights_are_a_folder_or_nowhere(
    options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache], weights: str
) -> None:
    cache = cache_of(options)
    assert says(cache, EngineLaunch(weights)) == ""
    assert cache._process is None


def test_nothing_is_fetched_when_the_node_is_offline(
    options: VllmOptions, cache_of: Callable[[VllmOptions], WeightCache]
) -> None:
    cache = cache_of(replace(options, offline=True))
    assert says(cache, ONE) == ""
    assert cache._process is None


def test_weights_are_here_once_all_of_the_revision_is_fetched(tmp_path: Path) -> None:
    of_one, hub = {"HF_HOME": str(tmp_path)}, tmp_path / "hub"
    assert weights_are_here(EngineLaunch("/srv/models/one"), of_one), "a folder of the node"
    assert not weights_are_here(TWO, of_one)
    folder = hub / "models--fake--two"
    for name in ("refs", "blobs", "snapshots/4f2a"):
        (folder / name).mkdir(parents=True)
    assert not weights_are_here(TWO, of_one), "of no revision yet"
    (folder / "refs/main").write_text("4f2a\n")
    assert weights_are_here(TWO, of_one)
    assert not weights_are_here(replace(TWO, arguments=("--revision", "v1")), of_one), "of another revision"
    assert weights_are_here(replace(TWO, arguments=("--revision=4f2a",)), of_one)
    part = folder / "blobs/0a1b.incomplete"
    part.touch()
    assert not weights_are_here(TWO, of_one)
    part.unlink()
    assert weights_are_here(TWO, {"HF_HOME": "/nowhere", "HF_HUB_CACHE": str(hub)})
