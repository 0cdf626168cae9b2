"""The five papers' systems and GreenServe's own on the demo fleet, one after another by one setting.

throttLL'eM's comes first: it resizes engines by the load that the operator declares, which counts until there are five
minutes of records. The last one takes all decisions of the others again.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import openai
import pytest

from tests.e2e.product import GREENSERVE, ROOT, Product, running, wait_for

pytestmark = pytest.mark.slow("eight policies on a fleet, a minute or more each")

SERVICE = "llama3-70b"
PATIENCE_S = 150.0
PROMPT = [11] * 400  # with the outputs below, one class in both of FREESH's partitions
LONG_TOKENS, LAX_TOKENS, SHORT_TOKENS = 230, 160, 8
HEAVY_PROMPT = [13] * 6000  # of which an engine computes one after the other


@dataclass
class Operator:
    """Changes policies as an operator does, and sees what an operator sees."""

    product: Product
    followed: list[tuple[str, datetime]] = field(default_factory=list)

    def follow(self, *words: str) -> datetime:
        """Gives the service a policy; returns when."""
        now = datetime.now(UTC)
        self.followed.append((" ".join(words), now))
        self.product.cli("policy", SERVICE, *words)
        return now

    def declare(self, rps: float) -> datetime:
        """Says what load is to be expected, the least to plan for as long as records are few."""
        now = datetime.now(UTC)
        rows = "UPDATE pools_service SET expected_rps = %s WHERE name = %s RETURNING id"
        assert self.product.sql(rows, rps, SERVICE)
        return now

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.product.sql(query, *parameters)

    def seen(self, what: str, query: str, *parameters: object, least: int = 1) -> list[tuple[Any, ...]]:
        """Waits for so many rows."""

        def probe() -> list[tuple[Any, ...]]:
            rows = self.product.sql(query, *parameters)
            return rows if len(rows) >= least else []

        return wait_for(what, probe, PATIENCE_S)

    def preemptions(self) -> dict[str, float]:
        """So far, by engine."""
        return {uid: _metric(url, "vllm:num_preemptions_total") for uid, url in self.engines()}

    def engines(self, request_class: str = "%") -> list[tuple[str, str]]:
        """Uid and address of those that serve a class."""
        ready = (
            "SELECT i.uid::text, i.url FROM pools_instance i JOIN pools_pool p ON p.id = i.pool_id "
            "JOIN pools_requestclass c ON c.id = p.request_class_id "
            "WHERE i.state = 'ready' AND i.desired = 'running' AND c.name LIKE %s"
        )
        return [(uid, url) for uid, url in self.rows(ready, request_class)]

    def one_pool(self) -> list[tuple[str, str]]:
        """Uid and address of all engines, once they serve one pool and none is still to come or to go."""
        moving = self.rows("SELECT uid FROM pools_instance WHERE (state = 'ready') <> (desired = 'running')")
        found = self.engines("ALL")
        return [] if moving or len(found) < len(self.engines()) else found


def _metric(url: str, name: str) -> float:
    """One of vLLM's, as its engine shows it; 0: it has gone."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return 0.0
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with running(tmp_path_factory.mktemp("policies"), traffic_rps=0.4) as product:
        yield Operator(product)


@pytest.fixture(scope="module")
def rush(demo: Operator) -> Iterator[None]:
    """More traffic, from its first use on."""
    command = [str(GREENSERVE), "replay", "--generate", "azure-conv-like", "--rate", "2", "--seed", "2", "--forever"]
    with subprocess.Popen([*command, "--quiet"], env=demo.product.env, cwd=ROOT, stdin=subprocess.DEVNULL) as client:
        try:
            yield
        finally:
            client.terminate()


class Crowd:
    """Clients that send requests of their own beside the demo's."""

    def __init__(self, client: openai.OpenAI, threads: ThreadPoolExecutor) -> None:
        self._client = client
        self._threads = threads
        self._begun: list[str] = []  # appending is one step, whichever thread does it

    @property
    def begun(self) -> int:
        """Requests that have had their first token."""
        return len(self._begun)

    def send(
        self, count: int, tokens: int, priority: int = 0, prompt: Sequence[int] = PROMPT, ttft_s: float | None = None
    ) -> list[Future[tuple[str, int]]]:
        """Each gives the id under which it is on record, and its output tokens. `ttft_s`: an objective of its own."""
        headers = {} if ttft_s is None else {"x-slo-ttft-ms": str(round(1000 * ttft_s))}
        return [self._threads.submit(self._one, tokens, priority, prompt, headers) for _ in range(count)]

    def _one(self, tokens: int, priority: int, prompt: Sequence[int], headers: dict[str, str]) -> tuple[str, int]:
        stream = self._client.completions.with_raw_response.create(
            model=SERVICE,
            prompt=list(prompt),
            extra_headers=headers,
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"priority": priority, "vllm_xargs": {"sim_output_tokens": tokens}},
        )
        chunks, request_id = iter(stream.parse()), stream.headers["x-request-id"]
        next(chunks)
        self._begun.append(request_id)
        *_, last = chunks
        assert last.usage is not None
        return request_id, last.usage.completion_tokens


@pytest.fixture
def crowd(demo: Operator) -> Iterator[Crowd]:
    key = next(iter(demo.product.credentials["api_keys"].values()))
    client = openai.OpenAI(base_url=f"{demo.product.gateway}/v1", api_key=key, timeout=150, max_retries=0)
    with client, ThreadPoolExecutor(128) as threads:
        yield Crowd(client, threads)


SERVED = "SELECT request_id FROM telemetry_requestrecord WHERE started_at > %s AND status = 'ok'"
HANDED_ON = (
    "SELECT r.request_id FROM telemetry_requestrecord r JOIN pools_pool p ON p.id = r.pool_id "
    "JOIN pools_requestclass there ON there.id = p.request_class_id "
    "JOIN pools_requestclass own ON own.partition_id = there.partition_id AND own.name = r.request_class "
    "WHERE r.started_at > %s AND r.status = 'ok' AND there.rank > own.rank "
    "AND r.route_reason LIKE '%%within the limits'"
)
FAILED = "SELECT request_id, status, error FROM telemetry_requestrecord WHERE started_at > %s AND status <> 'ok'"
SHADOWS = (
    "SELECT new.uid::text, old.uid::text, new.created_at, new.ready_at, old.stopped_at FROM pools_instance new "
    "JOIN pools_instance old ON new.replaces ? old.uid::text WHERE new.created_at > %s AND new.ready_at IS NOT NULL"
)
SERVED_FOR_THE_OLD = (
    " AND old.state = 'stopped' AND EXISTS (SELECT 1 FROM telemetry_requestrecord r "
    "WHERE r.instance_uid::text = new.uid::text AND r.status = 'ok') ORDER BY new.id"
)
RESIZED_WITHIN_S = 40.0
CLOCKS = "SELECT reason, summary FROM scheduler_decision WHERE at > %s AND kind = 'clock'"
DECIDED = "SELECT summary, commands FROM scheduler_decision WHERE at > %s AND kind = %s"
COMMANDED = DECIDED + " AND commands @> %s::jsonb"


def test_throttllem_sets_clocks_at_admissions_and_resizes_engines_by_shadows(demo: Operator) -> None:
    since = demo.follow("throttllem")
    demo.seen("a clock set at an admission", CLOCKS + " AND reason IN ('within_limits', 'lost', 'at_limit')", since)
    wait_for("an engine of one pool", lambda: demo.engines("ALL"), PATIENCE_S)
    loads = cycle((0.3, 8.0))  # for which smaller and larger engines would do, whichever they are now
    declared_at = -RESIZED_WITHIN_S

    def resized() -> list[tuple[Any, ...]]:
        nonlocal declared_at
        if not demo.rows(SHADOWS, since) and time.monotonic() - declared_at > RESIZED_WITHIN_S:
            declared_at = time.monotonic()
            demo.declare(next(loads))
        return demo.rows(SHADOWS + SERVED_FOR_THE_OLD, since)

    (new, old, created_at, ready_at, stopped_at), *_ = wait_for("a shadow that took over", resized, 2 * PATIENCE_S)
    assert stopped_at > ready_at
    started = COMMANDED + " AND reason IN ('slack', 'congested')"
    demo.seen("the decision to start it", started, since, "scale", '[{"type": "ScaleTo"}]')
    states = (
        "SELECT DISTINCT s.instance_state FROM telemetry_gpusample s JOIN pools_instance i ON i.id = s.instance_id "
        "WHERE i.uid::text = %s AND s.at BETWEEN %s AND %s"
    )
    assert demo.rows(states, old, created_at, ready_at) == [("ready",)], "the old one was to serve meanwhile"
    entries = (
        "SELECT e.kind FROM telemetry_energyentry e JOIN pools_instance i ON i.id = e.instance_id "
        "WHERE i.uid::text = %s AND e.energy_j > 0 AND e.start_at < %s AND e.end_at > %s"
    )
    demo.seen("energy of the start", entries + " AND e.kind = 'transition'", new, ready_at, created_at)
    assert demo.rows(entries + " AND e.kind IN ('serving', 'idle')", old, ready_at, created_at)
    assert demo.rows(FAILED, since) == []


def test_freesh_preempts_the_lax_for_the_urgent_and_moves_clocks(demo: Operator, crowd: Crowd) -> None:
    seqs = 8
    since = demo.follow("freesh", f"max_num_seqs={seqs}")
    demo.seen("a carbon epoch", DECIDED, since, "carbon")
    # Engines that were there before get their limit within a tick, sooner than any request is served.
    demo.seen("a request served since", SERVED + " AND request_class <> 'ALL'", since)
    engines = wait_for("engines of class LS", lambda: demo.engines("LS"), PATIENCE_S)
    lax = crowd.send(3 * seqs * len(engines), LONG_TOKENS, priority=1)
    wait_for(
        "a full engine",
        lambda: (
            crowd.begun >= seqs and any(_metric(url, "vllm:num_requests_waiting") > 0 for _, url in demo.engines("LS"))
        ),
        PATIENCE_S,
        every_s=0.1,
    )
    before = demo.preemptions()
    urgent = crowd.send(seqs, SHORT_TOKENS, priority=-1)

    def preempted() -> set[str]:
        return {uid for uid, count in demo.preemptions().items() if count > before.get(uid, 0.0)}

    where = wait_for("a preemption", preempted, PATIENCE_S)
    assert {tokens for _, tokens in _ended(urgent)} == {SHORT_TOKENS}
    assert {tokens for _, tokens in _ended(lax)} == {LONG_TOKENS}, "all that gave way were finished"
    records = (
        "SELECT status, instance_uid::text, itl_max_s, e2e_s - ttft_s FROM telemetry_requestrecord "
        "WHERE request_id = ANY(%s)"
    )
    lax_rows, urgent_rows = [
        demo.seen("their records", records, [request_id for request_id, _ in _ended(sent)], least=len(sent))
        for sent in (lax, urgent)
    ]
    assert {status for status, *_ in [*lax_rows, *urgent_rows]} == {"ok"}
    assert where & {uid for _, uid, *_ in urgent_rows}, "preempted where they were"
    pause_s, turn_s = max(row[2] for row in lax_rows), min(row[3] for row in urgent_rows)
    assert pause_s > turn_s, "one paused for as long as an urgent one ran"
    assert demo.rows(FAILED, since) == []
    moves = demo.seen("a clock going down", CLOCKS + " AND reason = 'slack'", since)
    assert any("MHz" in summary for _, summary in moves)


def _ended(sent: Sequence[Future[tuple[str, int]]]) -> list[tuple[str, int]]:
    return [future.result(timeout=PATIENCE_S) for future in sent]


def test_dynamollm_serves_one_that_waits_in_an_engine_before_others_when_it_would_be_late(
    demo: Operator, crowd: Crowd
) -> None:
    """Engines run one request each; with fewer than `engine_queue` each the others wait there, not at the gateway."""
    fleet = ("partition=whole", "scale=static", "shard=off", "clock=fixed", "tp=8", "max_num_seqs=1")
    since = demo.follow("dynamollm", *fleet, "route=least_loaded", "emergencies_up_to=reorder")
    demo.seen("a request served since", SERVED + " AND request_class = 'ALL'", since)
    engines = wait_for("engines that all serve one pool", demo.one_pool, PATIENCE_S)
    lax = crowd.send(12 * len(engines), LAX_TOKENS, prompt=HEAVY_PROMPT, ttft_s=120.0)
    wait_for(
        "engines in which requests wait",
        lambda: sum(_metric(url, "vllm:num_requests_waiting") for _, url in engines) >= 8 * len(engines),
        PATIENCE_S,
        every_s=0.05,
    )
    urgent = crowd.send(len(engines), SHORT_TOKENS, prompt=HEAVY_PROMPT, ttft_s=3.0)
    ids = [[request_id for request_id, _ in _ended(sent)] for sent in (lax, urgent)]
    records = (
        "SELECT started_at, ttft_s, instance_uid, queue_s, status, prompt_tokens, output_tokens "
        "FROM telemetry_requestrecord WHERE request_id = ANY(%s)"
    )
    lax_rows, urgent_rows = [demo.seen("their records", records, own, least=len(own)) for own in ids]
    for sent, rows, tokens in ((lax, lax_rows, LAX_TOKENS), (urgent, urgent_rows, SHORT_TOKENS)):
        assert len(rows) == len(sent), "each is on record once"
        assert {row[4:] for row in rows} == {("ok", len(HEAVY_PROMPT), tokens)}
        assert {row[3] for row in rows} == {None}, "none waited at the gateway"
    overtaken = [
        sum(row[2] == own[2] and row[0] < own[0] and _first_token_at(row) > _first_token_at(own) for row in lax_rows)
        for own in urgent_rows
    ]
    assert max(overtaken) >= 3, "some that came to its engine before it had their first tokens after it"


def _first_token_at(row: Any) -> Any:
    return row[0] + timedelta(seconds=row[1])


@pytest.mark.usefixtures("rush")
def test_muserve_serves_short_jobs_first_and_moves_clocks_by_slack(demo: Operator, crowd: Crowd) -> None:
    since = demo.follow("muserve", "max_num_seqs=2", "engine_queue=1")
    demo.seen("requests served", SERVED + " AND request_class = 'ALL'", since, least=3)
    longs = crowd.send(3 * len(demo.engines()) + 12, LONG_TOKENS // 2)
    wait_for(
        "a line at the gateway",
        lambda: _metric(demo.product.gateway, "greenserve_gateway_requests_waiting") >= 8,
        PATIENCE_S,
        every_s=0.1,
    )
    shorts = crowd.send(4, SHORT_TOKENS)
    ids = [[request_id for request_id, _ in _ended(sent)] for sent in (longs, shorts)]
    times = "SELECT started_at, queue_s FROM telemetry_requestrecord WHERE request_id = ANY(%s) AND status = 'ok'"
    long_rows, short_rows = [demo.seen("their records", times, own, least=len(own)) for own in ids]
    came_by = max(at for at, _ in short_rows)
    left_by = max(at + timedelta(seconds=queue_s or 0.0) for at, queue_s in short_rows)
    left = [at + timedelta(seconds=queue_s) for at, queue_s in long_rows if queue_s]
    waited_longer = [at for at in left if at > came_by + timedelta(seconds=0.5)]
    assert waited_longer, "no long one was waiting still when the short ones came"
    assert left_by <= min(waited_longer), "a long one went before a short one"
    demo.seen("a clock moved by slack", CLOCKS + " AND reason IN ('slack', 'congested')", since)


@pytest.mark.usefixtures("rush")
def test_dynamollm_has_pools_of_table_iv_servers_by_load_and_profiled_clocks(demo: Operator) -> None:
    since = demo.follow("dynamollm")
    demo.seen("servers counted anew", COMMANDED, since, "scale", '[{"type": "ScaleTo"}]')
    demo.seen(
        "a class of table IV",
        "SELECT DISTINCT request_class FROM telemetry_requestrecord WHERE started_at > %s "
        "AND request_class IN ('SS','SM','SL','MS','MM','ML','LS','LM','LL')",
        since,
        least=2,
    )
    demo.seen("requests handed on", HANDED_ON, since, least=5)
    demo.seen("a clock by profile", CLOCKS + " AND reason NOT IN ('no_data', 'policy')", since)
    demo.seen("requests served", SERVED, since, least=20)


@pytest.mark.usefixtures("rush")
def test_dynamollm_changes_tp_degrees_server_by_server(demo: Operator) -> None:
    """Its ablation ScaleShard, on one pool: where several servers share a load there is a mix to be chosen."""
    since = demo.follow("scale_shard", "partition=whole", "tp=4")
    demo.seen("a server with other TP degrees", COMMANDED, since, "shard", '[{"type": "ReshardNode"}]')


@pytest.mark.usefixtures("rush")
def test_greenserve_gives_back_what_the_load_does_not_need_and_no_request_fails(demo: Operator) -> None:
    """After a policy that fills every GPU."""
    demo.follow("single_pool")
    wait_for("instances on every GPU", lambda: len(demo.engines()) >= 5, PATIENCE_S)
    since = demo.follow("greenserve")
    demo.seen("a smaller fleet", COMMANDED + " AND reason = 'slack'", since, "scale", '[{"type": "ScaleTo"}]')
    smaller = datetime.now(UTC)
    demo.seen(
        "clocks for what is there", CLOCKS + " AND summary LIKE 'The lowest clock that keeps%%'", smaller, least=5
    )
    demo.seen("a clock at the floor", CLOCKS + " AND summary LIKE 'Nothing is to be done%%'", since)
    demo.seen("requests served", SERVED + " AND route_reason = 'least backlog'", smaller, least=20)
    assert not demo.rows(FAILED, since)


@pytest.mark.usefixtures("rush")
@pytest.mark.parametrize("words", [("dynaserve", "itl_limit_s=0.025"), ("pd_disagg",)])
def test_requests_are_split_over_two_engines(demo: Operator, words: tuple[str, ...]) -> None:
    since = demo.follow(*words)
    demo.seen("requests that were split", SERVED + " AND route_reason LIKE 'split at token%%'", since, least=3)


@pytest.mark.usefixtures("rush")
def test_baseline_leaves_clocks_at_the_top_requests_whole_and_runs_none_for_another(demo: Operator) -> None:
    since = demo.follow("single_pool", "max_num_seqs=4")
    demo.seen("requests served", SERVED, since, least=5)
    later, before = datetime.now(UTC), demo.preemptions()
    demo.seen("more requests served", SERVED, later, least=10)
    after = demo.preemptions()
    assert {uid: after[uid] - count for uid, count in before.items() if uid in after and after[uid] != count} == {}
    assert not demo.rows(SERVED + " AND route_reason LIKE 'split%%'", later)
    assert {reason for reason, _ in demo.rows(CLOCKS, later)} <= {"policy"}


def test_every_policy_decides_the_same_when_its_run_is_replayed(demo: Operator) -> None:
    recorded = (
        "SELECT id FROM scheduler_epoch WHERE recording IS NOT NULL AND jsonb_array_length(recording) > 0 "
        "AND started_at BETWEEN %s AND %s"
    )
    ends = [at for _, at in demo.followed[1:]] + [datetime.now(UTC)]
    without = [name for (name, at), end in zip(demo.followed, ends, strict=True) if not demo.rows(recorded, at, end)]
    assert without == []
    done = demo.product.cli("decisions", "--service", SERVICE, "--last", "1000", "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    replayed = json.loads(done.stdout)
    assert replayed["differ"] == []
    assert replayed["steps"] >= len(demo.followed)
