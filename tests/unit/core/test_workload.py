import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest

from scheduler.simulator.workload import OUTPUT_QUANTILES, TraceError, TraceRequest, azure_conv_like, read_azure_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_trace_is_read_when_plain_or_compressed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, HEADER + FIRST + "2023-11-16 18:15:50.6805900,396,109\n", name)
    assert read_azure_trace(path) == [TraceRequest(0.0, 374, 44), TraceRequest(4.0, 396, 109)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (HEADER, "is empty"),
        ("TIMESTAMP,ContextTokens\n", "line 1: column GeneratedTokens is missing"),
        (HEADER + FIRST + "2023-11-16 18:15:50,many,1\n", "line 3: ContextTokens 'many' is not a whole number"),
        (HEADER + "2023-11-16 18:15:50,10\n", "line 2: GeneratedTokens '' is not a whole number"),
        (HEADER + "2023-11-16 18:15:50,10,0\n", "line 2: GeneratedTokens must be at least 1, not 0"),
        (HEADER + "2023-11-16 18:15:50,-3,1\n", "line 2: ContextTokens must be at least 1, not -3"),
        (HEADER + "yesterday,3,1\n", "line 2: TIMESTAMP 'yesterday' is not a time"),
        (HEADER + FIRST + "2023-11-16 18:15:40,3,1\n", "line 3: TIMESTAMP .* is earlier"),
        (HEADER + FIRST + "2023-11-16 18:15:50Z,3,1\n", "line 3: some timestamps name a time zone"),
    ],
)
def test_trace_is_refused_and_the_line_named_when_bad(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=f"trace.csv.*{message}"):
        read_azure_trace(path)


def test_trace_is_refused_when_not_there_or_not_gzip(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_azure_trace(tmp_path / "none.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_text(HEADER)
    with pytest.raises(TraceError, match="cannot be read"):
        read_azure_trace(broken)


def test_real_trace_is_read_when_there_is_one(test_data: Path) -> None:
    requests = read_azure_trace(test_data / "azure_llm_2023_conv.csv.gz")
    assert len(requests) == 19_366
    assert requests[0] == TraceRequest(0.0, 374, 44)


def test_traffic_is_the_same_when_the_seed_is() -> None:
    first, second = (list(itertools.islice(azure_conv_like(7, 3.0), 50)) for _ in range(2))
    assert first == second
    assert first != list(itertools.islice(azure_conv_like(8, 3.0), 50))


def test_traffic_has_the_published_statistics_when_drawn_at_length() -> None:
    drawn = list(itertools.islice(azure_conv_like(1, 4.0), 20_000))
    assert len(drawn) / drawn[-1].at_s == pytest.approx(4.0, rel=0.05)
    assert np.median([request.prompt_tokens for request in drawn]) == pytest.approx(1020, rel=0.05)
    assert np.median([request.output_tokens for request in drawn]) == pytest.approx(129, rel=0.05)
    assert all(2 <= r.prompt_tokens <= 14_050 and 7 <= r.output_tokens <= OUTPUT_QUANTILES[-1] for r in drawn)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(drawn))


def test_prompts_are_cut_when_bounded() -> None:
    drawn = list(itertools.islice(azure_conv_like(1, 1.0, max_prompt=100), 200))
    assert max(request.prompt_tokens for request in drawn) == 100


@pytest.mark.parametrize(("rate", "most"), [(0.0, 10), (-1.0, 10), (1.0, 0)])
def test_traffic_is_refused_when_its_figures_make_no_sense(rate: float, most: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        azure_conv_like(1, rate, most)
