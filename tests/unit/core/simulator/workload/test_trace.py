import gzip
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.simulator.kernel.arrivals import BLOCK_REQUESTS
from core.simulator.workload import Tally, TraceError, TraceRequest, read_azure_trace, read_trace
from tests.unit.core.simulator.workload.helpers import assert_same, whole
from tests.unit.laws import examples

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
ONE = "5,ChatGPT,472,18,490,Conversation log\n"


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_trace_is_read_when_plain_or_compressed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, HEADER + FIRST + "2023-11-16 18:15:50.6805900,396,109\n", name)
    assert read_azure_trace(path) == [TraceRequest(0.0, 374, 44), TraceRequest(4.0, 396, 109)]


@pytest.mark.parametrize(
    "line",
    [
        "2023-11-16 18:15:50.6805900,396,109\r\n",
        "2023-11-16 18:15:50.68059,396,109",  # no newline at the end
        "2023-11-16T18:15:50.680590,396,109\n",
        '"2023-11-16 18:15:50.680590","396","109"\n',
        " 2023-11-16 18:15:50.680590 , 396 ,109\n",
        "\n\r\n2023-11-16 18:15:50.680590,396,109\n\n",
        "2023-11-16 18:15:50.680590,396,109,a further column\n",
    ],
)
def test_trace_is_read_when_a_line_is_unusual_but_right(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "\ufeff" + HEADER + FIRST + line)
    assert read_azure_trace(path) == [TraceRequest(0.0, 374, 44), TraceRequest(4.0, 396, 109)]


def test_trace_of_2024_is_read_when_the_fraction_is_missing_and_zones_differ(tmp_path: Path) -> None:
    lines = "2024-05-10 00:00:00.009930+00:00,1,2\n2024-05-10 00:00:01+00:00,3,4\n2024-05-10 02:00:01.5+02:00,5,6\n"
    lines += "2024-05-09 23:30:01.75-00:30,7,8\n2024-05-10 00:00:02Z,9,10\n"
    found = read_azure_trace(write(tmp_path, HEADER + lines))
    assert [r.at_s for r in found] == [0.0, 0.99007, 1.49007, 1.74007, 1.99007]
    assert [r.output_tokens for r in found] == [2, 4, 6, 8, 10]


def test_burstgpt_is_read_and_failed_requests_are_counted_when_in_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = "1106,ChatGPT,0,0,0,Conversation log\n1200,GPT-4,614,0,614,API log\n"
    path = write(tmp_path, BURST + "1,GPT-4,9,0,9,API log\n" + ONE + failed + "1500.25,GPT-4,7,3,10,API log\n")
    tally = Tally()
    with caplog.at_level(logging.WARNING):
        found = whole(read_trace(path, tally))
    assert found.arrival_s.tolist() == [0.0, 1495.25]
    assert found.prompt_tokens.tolist() == [472, 7]
    assert found.output_tokens.tolist() == [18, 3]
    assert tally.failed == 3
    assert "left out 3 requests without output tokens" in caplog.text


def test_burstgpt_is_read_when_columns_are_more_and_in_another_order(tmp_path: Path) -> None:
    header = "Log Type,Session ID,Response tokens,Timestamp,Elapsed time,Model,Request tokens,Total tokens\n"
    path = write(tmp_path, header + "API log,,18,5,1.5,ChatGPT,472,490\n" + '"a, b",x,2,1e1,0,GPT-4,3,5\n')
    assert read_azure_trace(path) == [TraceRequest(0.0, 472, 18), TraceRequest(5.0, 3, 2)]


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
        (HEADER + "2023-11-16 18:15:50,3," + "9" * 30 + "\n", "line 2: GeneratedTokens must be at most"),
        (HEADER + "yesterday,3,1\n", "line 2: TIMESTAMP 'yesterday' is not a time"),
        (HEADER + "2023-02-29 18:15:50,3,1\n", "line 2: TIMESTAMP '2023-02-29 18:15:50' is not a time"),
        (HEADER + FIRST + "2023-11-16 18:15:40,3,1\n", "line 3: TIMESTAMP .* is earlier"),
        (HEADER + FIRST + "\n\n2023-11-16 18:15:40,3,1\n", "line 5: TIMESTAMP .* is earlier"),
        (HEADER + FIRST + "2023-11-16 18:15:50Z,3,1\n", "line 3: some timestamps name a time zone"),
        (HEADER + "2023-11-16 18:15:50,\xff,1\n", "line 2: ContextTokens"),
        ("a,b\n1,2\n", "line 1: unknown header 'a,b'; known are Azure: TIMESTAMP, .*; BurstGPT: Timestamp, Model"),
        ("Timestamp,Model,Request tokens\n", "line 1: column Response tokens is missing"),
        (BURST + "5,GPT-4,0,3,3,API log\n", "line 2: Request tokens must be at least 1, not 0"),
        (BURST + "soon,GPT-4,1,3,3,API log\n", "line 2: Timestamp 'soon' is not a number of seconds"),
        (BURST + "-5,GPT-4,1,3,3,API log\n", "line 2: Timestamp '-5' is not a number of seconds"),
        (BURST + "7,GPT-4,1,3,3,API log\n" + ONE, "line 3: Timestamp '5' is earlier than the row before; sort"),
        (BURST + "7,GPT-4,1,0,1,API log\n", "is empty: all of its 1 requests had failed"),
    ],
)
def test_trace_is_refused_and_the_line_named_when_bad(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError, match=f"trace.csv.*{message}"):
        read_azure_trace(path)


def test_trace_is_refused_when_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_text(HEADER)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(broken)
    (tmp_path / "short.csv.gz").write_bytes(gzip.compress((HEADER + FIRST * 9).encode())[:-9])
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_trace(tmp_path / "short.csv.gz"))
    (tmp_path / "bad.csv").write_bytes(HEADER.encode() + b'"\xff\xfe",3,1\n')
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_trace(tmp_path / "bad.csv"))
    with pytest.raises(TraceError, match="has a line of more than 1 MiB"):
        list(read_trace(write(tmp_path, HEADER + "x" * 6_000_000)))


def test_header_is_looked_at_when_the_stream_is_made(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unknown header"):
        read_trace(write(tmp_path, "a,b,c\n"))


def test_blocks_are_bounded_when_the_trace_is_long(tmp_path: Path) -> None:
    path = write(tmp_path, BURST + ONE * (2 * BLOCK_REQUESTS + 1))
    assert [len(block) for block in read_trace(path)] == [BLOCK_REQUESTS, BLOCK_REQUESTS, 1]


moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(moments, st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=20),
    st.integers(1, 60),
    st.sampled_from(["", "Z", "+00:00", "+05:30", "-11:00"]),
    st.sampled_from(["\n", "\r\n"]),
)
def test_trace_is_read_to_the_microsecond_when_read_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[datetime, int, int]], piece: int, zone: str, end: str
) -> None:
    rows = sorted(rows)
    lines = "".join(f"{at}{zone},{prompt},{output}{end}" for at, prompt, output in rows)
    path = write(tmp_path_factory.mktemp("traces"), HEADER + lines)
    found = whole(read_trace(path, chunk_bytes=piece))
    us = [(at - rows[0][0]) // timedelta(microseconds=1) for at, _, _ in rows]
    assert found.arrival_s.tolist() == [n / 1e6 for n in us]
    assert list(zip(found.prompt_tokens.tolist(), found.output_tokens.tolist(), strict=True)) == [r[1:] for r in rows]
    assert_same(whole(read_trace(path)), found)


@settings(max_examples=examples(80), deadline=None)
@given(moments, st.text("0123456789-:. TZ+", max_size=4), st.integers(0, 30))
def test_times_are_read_as_the_standard_library_does_when_odd(
    tmp_path_factory: pytest.TempPathFactory, at: datetime, noise: str, where: int
) -> None:
    text = str(at)
    text = text[:where] + noise + text[where:]
    path = write(tmp_path_factory.getbasetemp(), HEADER + f"0001-01-01 00:00:00,1,1\n{text},1,1\n")
    try:
        expected = datetime.fromisoformat(text.strip())
    except ValueError:
        with pytest.raises(TraceError, match="line 3: TIMESTAMP"):
            read_azure_trace(path)
        return
    if expected.tzinfo is not None:
        with pytest.raises(TraceError, match="some timestamps name a time zone"):
            read_azure_trace(path)
        return
    since = expected.replace(tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC)
    assert read_azure_trace(path)[1].at_s == (since // timedelta(microseconds=1)) / 1e6


def test_real_trace_is_read_when_there_is_one(test_data: Path) -> None:
    requests = read_azure_trace(test_data / "azure_llm_2023_conv.csv.gz")
    assert len(requests) == 19_366
    assert requests[0] == TraceRequest(0.0, 374, 44)
    assert np.all(np.diff([r.at_s for r in requests]) >= 0.0)


def test_plain_traces_of_seconds_and_tokens_are_read_when_they_have_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,prefix_blocks_512\n5.250,6758,500,0 1 2\n5.500,7322,1,\n")
    assert read_azure_trace(path) == [TraceRequest(0.0, 6758, 500), TraceRequest(0.25, 7322, 1)]


@pytest.mark.parametrize(("name", "count"), [("mooncake_conversation", 12_031), ("servegen_m-mid_hour", 18_015)])
def test_real_plain_traces_are_read_when_there_are_some(test_data: Path, name: str, count: int) -> None:
    assert len(read_azure_trace(test_data / f"{name}.csv.gz")) == count


def test_predictions_that_were_recorded_come_with_their_requests(tmp_path: Path) -> None:
    text = "arrival_s,predicted_tokens,prompt_tokens,output_tokens\n0,50,374,44\n1.5,,396,109\n2, 7 ,10,20\n"
    block = whole(read_trace(write(tmp_path, text)))
    assert block.predicted_tokens is not None
    assert block.predicted_tokens.tolist() == [50, 0, 7]
    assert whole(read_trace(write(tmp_path, HEADER + FIRST))).predicted_tokens is None
    with pytest.raises(TraceError, match="line 2: predicted_tokens 'many' is not a whole number"):
        whole(read_trace(write(tmp_path, "arrival_s,predicted_tokens,prompt_tokens,output_tokens\n0,many,374,44\n")))
