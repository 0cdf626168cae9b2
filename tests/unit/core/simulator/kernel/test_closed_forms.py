"""A server that reduces to M/D/1 and M/M/1, against their closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from core.simulator.kernel.driver import simulate
from core.simulator.kernel.simulated import FixedCosts, FleetSpec, InstanceSpec, PoolSpec, load

# One request at a time, one token each: its prompt is its service time, in millionths of the mean.
SCALE = 1_000_000
SERVER = InstanceSpec(
    "server",
    "fixed",
    "fixed",
    1,
    1.0,
    max_sequences=1,
    tokens_per_iteration=10**12,
    kv_capacity_tokens=10**12,
    costs=FixedCosts(base_s=1e-12, prefill_token_s=1.0 / SCALE, busy_w=100.0, idle_w=10.0),
)
FLEET = FleetSpec((SERVER,), (PoolSpec("all", (0,)),))


def waits(gaps: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Lindley's recursion in closed form: W_n = S_n - min over k of S_k, S the sums of service less gap."""
    steps = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
    return steps - np.minimum.accumulate(steps)


@pytest.mark.parametrize(
    ("requests", "within"),
    [(60_000, 0.02), pytest.param(400_000, 0.01, marks=pytest.mark.slow("a hundredth takes many requests"))],
)
@pytest.mark.parametrize("rho", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["M/D/1", "M/M/1"])
def test_waits_equal_the_closed_form_when_the_scenario_is_a_queue(
    kind: str, rho: float, requests: int, within: float
) -> None:
    rng = np.random.default_rng(3)
    # Exponentials by strata in random order: the same distribution with less sampling error in its moments.
    shares = (np.arange(requests) + rng.random(requests)) / requests
    gaps = -np.log1p(-rng.permutation(shares)) / rho
    service = np.ones(requests) if kind == "M/D/1" else -np.log1p(-rng.permutation(shares))
    prompt = np.maximum(1, np.rint(service * SCALE)).astype(np.int64)
    out = simulate(FLEET, load(np.cumsum(gaps), prompt, np.ones(requests, np.int64)))
    measured = out.rows["finish_s"] - out.rows["arrival_s"] - prompt / SCALE
    # Exactly what the recursion gives for these very arrivals,
    np.testing.assert_allclose(measured, waits(gaps, prompt / SCALE), rtol=0, atol=1e-5)
    # and in the mean what the theory says. A wait does not depend on the service and gap that follow it; that they
    # correlate by chance is most of the sampling error at high utilisation, and is taken out (a control variate).
    drift = prompt[:-1] / SCALE - gaps[1:]
    expected_drift = 1.0 - 1.0 / rho
    chance = float((measured[:-1] * (drift - expected_drift)).mean()) / -expected_drift
    closed_form = rho / (1.0 - rho) * (0.5 if kind == "M/D/1" else 1.0)
    assert measured.mean() - chance == pytest.approx(closed_form, rel=within)
    busy = (out.spent_j["prefill"].sum() / 100.0) / out.end_s
    assert busy == pytest.approx(rho, rel=within)
