"""Runs the commands of the documentation, page by page, in one shell session for each page.

A comment before a block says where: `<!-- run: files -->` needs files alone, `<!-- run: product -->` needs the product
with its demo fleet. What cannot be run here says why in `<!-- not run: ... -->`, and is parsed all the same
(tests/unit/test_documents.py).
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import documents
from tests.conftest import skip_or_fail
from tests.documents import Block
from tests.e2e.product import Product, running, wait_for
from tests.ports import free_port

PAGE_ENDS_WITHIN_S = 300.0
SETTLES_WITHIN_S = 900.0  # a window of five minutes, two minutes for late samples, and beat
SIMULATED_NODE = "9731"  # the port that docs/simulated-nodes.md gives its node
TRACE = "AzureLLMInferenceTrace_conv.csv"


def pages(where: str) -> list[Path]:
    """Returns the pages that run there: a page with one block for the product runs there with all of its blocks."""
    found = [page for page in documents.PAGES if page.name != "production.md"]  # which has machines of its own
    worlds = {page: {block.where for block in documents.blocks(page) if block.where} for page in found}
    return [page for page, needed in worlds.items() if needed and max(needed) == where]  # "product" is after "files"


def _page(page: Path) -> Any:
    """The page of policies runs the simulator once for each example: half a minute."""
    long = page.name == "policies.md"
    return pytest.param(page, marks=pytest.mark.slow("a run for each policy")) if long else page


@pytest.mark.parametrize("page", [_page(page) for page in pages("files")], ids=documents.name_of)
def test_commands_that_need_files_alone(page: Path, tmp_path: Path, test_data: Path) -> None:
    run(page, tmp_path, test_data, os.environ, {SIMULATED_NODE: str(free_port())})


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """The demo, once the ledger has settled its first window: reports need one."""
    with running(tmp_path_factory.mktemp("documented"), traffic_rps=3.0) as product:
        wait_for(
            "a settled window", lambda: product.sql("SELECT 1 FROM telemetry_settlement LIMIT 1"), SETTLES_WITHIN_S
        )
        yield product


@pytest.mark.slow("the product, for the commands that pages give its users")
@pytest.mark.parametrize("page", pages("product"), ids=documents.name_of)
def test_commands_for_the_product(page: Path, tmp_path: Path, test_data: Path, product: Product) -> None:
    rights = [f"--right={right}" for right in ("view", "operate", "finance", "administer")]
    token = product.cli("user", "token", product.credentials["admin"]["user"], "--label", page.stem, *rights)
    environment = {
        **product.env,
        "KEY": next(iter(product.credentials["api_keys"].values())),
        "TOKEN": token.stdout.strip(),
    }
    addresses = {"http://127.0.0.1:8000": product.web, "http://127.0.0.1:8080": product.gateway}
    run(page, tmp_path, test_data, environment, addresses)


def run(
    page: Path,
    folder: Path,
    test_data: Path,
    environment: Mapping[str, str],
    addresses: Mapping[str, str],
) -> None:
    """Runs the page's blocks in `folder` as one script, which ends at the first command that fails.

    `addresses`: those that the page has, with what is there in their place.
    """
    if shutil.which("curl") is None:
        skip_or_fail("pages use curl, which is not on the PATH")
    for name in ("scenarios", "scripts"):  # copies, since pages write files
        shutil.copytree(documents.ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    (folder / TRACE).write_bytes(gzip.decompress((test_data / "azure_llm_2023_conv.csv.gz").read_bytes()))
    (folder / ".curlrc").write_text("fail\nshow-error\n")  # else an error's answer would pass
    begin = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    script = "\n".join([*begin, *map(_run, (one for one in documents.blocks(page) if one.where))])
    for documented, actual in addresses.items():
        script = script.replace(documented, actual)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**environment, "PATH": path, "CURL_HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_ENDS_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4_000:]


def _run(block: Block) -> str:
    """Returns the block as shell text, with its place in the output before what it prints."""
    text = (
        block.text
        if block.language == "sh"
        else f"python - <<'END_OF_{block.language}'\n{block.text}END_OF_{block.language}"
    )
    return f"echo '== {block.place}'\n{text}"
