"""The engine model, compiled: what the simulator's inner loop and the clock by deadlines ask for each iteration.

The formulas are those of `engine_model` and `second_set`; tests hold them together, to 1e-12 (relative).
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from core.compiled import compiled
from core.engine.engine_model import EngineModel

Floats = NDArray[np.float64]

THROTTLE_BISECTIONS = 20
GRAPH_SLOPE = 0.25  # as in core.engine.second_set
KNOTS = 8  # of corrections: core.engine.corrections.KNOTS, since compiled code may use only what its own file defines

# Columns of an instance's cost parameters: see core.engine.engine_model for what they mean.
# fmt: off
COST_COLUMNS = (
    "fixed", "flop_per_token", "flop_per_row", "flop_per_attention", "dense_bytes", "expert_bytes", "expert_miss",
    "head_bytes", "activation_bytes", "kv_bytes", "compute", "bandwidth", "ar_fixed_s", "ar_per_token_s", "layers_s",
    "launch_s", "host_s", "seq_s", "f_max", "f_min", "f_bw", "p_norm", "eff_attn", "eff_kv", "k_sm", "v_min", "f_v",
    "idle_w", "c_clk", "e_flop_pj", "e_byte0_pj", "e_byte1_pj", "cap_w", "idle_clk_share", "tp", "base_s",
    "prefill_token_s", "decode_s", "busy_w", "second", "clk_gate", "wait_clk", "e_kv_x",
)
# Those of parameter set 2: see core.engine.second_set.
SECOND_COLUMNS = (
    "flop_dense", "flop_expert", "flop_pad", "flop_decode", "expert_bytes", "log_miss", "route_a", "skew", "ep_spread",
    "big_tokens", "pad_rows", "pad_all", "dense_x", "expert_x", "expert_m", "e_dense_x", "e_expert_x", "row_s",
    "layers_s", "moe_s", "big_s", "eager_s", "mix", "graph_tokens", "floor_s", "floor_row_s", "logit_j", "full",
    "window",
)
(
    FIXED, FLOP_TOKEN, FLOP_ROW, FLOP_ATTENTION, DENSE, EXPERT, EXPERT_MISS,
    HEAD, ACTIVATION, KV_BYTES, COMPUTE, BANDWIDTH, AR_FIXED, AR_TOKEN, LAYERS,
    LAUNCH, HOST, SEQ, F_MAX, F_MIN, F_BW, P_NORM, EFF_ATTN, EFF_KV, K_SM, V_MIN, F_V,
    IDLE_W, C_CLK, E_FLOP, E_BYTE0, E_BYTE1, CAP, IDLE_SHARE, TP, BASE_S,
    PREFILL_TOKEN_S, DECODE_S, BUSY_W, SECOND, CLK_GATE, WAIT_CLK, E_KV,
    S_DENSE, S_EXPERT, S_PAD, S_DECODE, S_BYTES, S_MISS, S_ROUTE, S_SKEW, S_SPREAD,
    S_BIG_TOKENS, S_PAD_ROWS, S_PAD_ALL, S_DENSE_X, S_EXPERT_X, S_EXPERT_M, S_E_DENSE, S_E_EXPERT, S_ROW,
    S_LAYERS, S_MOE, S_BIG, S_EAGER, S_MIX, S_GRAPH, S_FLOOR, S_FLOOR_ROW, S_LOGIT, S_FULL,
    S_WINDOW,
) = range(len(COST_COLUMNS) + len(SECOND_COLUMNS))
TIME0 = len(COST_COLUMNS) + len(SECOND_COLUMNS)  # factors of time at the knots, and from POWER0 on of power
POWER0 = TIME0 + KNOTS
COSTS = POWER0 + KNOTS
# fmt: on


def model_row(model: EngineModel) -> Floats:
    """Returns the cost parameters of an engine, of shape (costs,), as the compiled functions take them."""
    gpu, constants, second = model.gpu_params, model.constants, model.constants.second
    row = np.zeros(COSTS)
    row[TIME0:] = 1.0
    values: dict[str, float] = dict.fromkeys(COST_COLUMNS, 0.0)
    for source in (gpu, constants):
        values |= {item.name: getattr(source, item.name) for item in fields(source) if item.name in values}
    values |= {"tp": model.tp, "cap_w": gpu.cap_w, "second": float(second is not None)}
    row[: len(values)] = [values[name] for name in COST_COLUMNS]
    if second is not None:
        row[len(values) : TIME0] = [getattr(second, name) for name in SECOND_COLUMNS]
    if model.correction is not None:
        row[TIME0:] = (*model.correction.time, *model.correction.power)
    return row


@compiled
def bandwidth_share(f: float, f_bw: float) -> float:
    """Returns the share of the memory's bandwidth that is used at clock `f`; it saturates above `f_bw`."""
    x = f / f_bw
    return float(x / (1.0 + x**4) ** 0.25)


@compiled
def voltage(c: Floats, f: float) -> float:
    """Returns v(f), relative to the voltage at the top clock, from the costs `c`, shape (costs,)."""
    if f <= c[F_V]:
        return float(c[V_MIN])
    return float(c[V_MIN] + (1.0 - c[V_MIN]) * (f - c[F_V]) / (c[F_MAX] - c[F_V]))


@compiled
def idle_watts(c: Floats, mhz: float) -> float:
    """Returns the power in W of an instance with nothing to do; `c` has the costs, shape (costs,)."""
    if c[FIXED] > 0.0:
        return float(c[IDLE_W])
    f = min(max(mhz, c[F_MIN]), c[F_MAX])
    watts = c[IDLE_W] + c[IDLE_SHARE] * c[C_CLK] * f / c[F_MAX] * voltage(c, f) ** 2
    return float(c[TP] * watts * correction(c, POWER0, f))


@compiled
def correction(c: Floats, first: int, f: float) -> float:
    """Returns the factor on time or power at clock `f`, on the line between two of the knots from column `first` on;
    `c` has the costs, shape (costs,)."""
    if c[F_MAX] <= c[F_MIN]:
        return float(c[first])
    at = (f - c[F_MIN]) / (c[F_MAX] - c[F_MIN]) * (KNOTS - 1)
    below = min(int(at), KNOTS - 2)
    share = at - below
    return float(c[first + below] * (1.0 - share) + c[first + below + 1] * share)


@compiled
def at_clock(
    c: Floats, f: float, linear: float, prefill: float, decode: float, stream: float, kv: float, n: float, rows: float
) -> tuple[float, float, bool]:
    """Returns seconds, watts of each GPU, and whether kernel launches set the pace; `c` has shape (costs,)."""
    r = f / c[F_MAX]
    compute = c[COMPUTE] * r
    bandwidth = c[BANDWIDTH] * bandwidth_share(f, c[F_BW])
    t_c = linear / compute
    t_m = stream / bandwidth
    t_gpu = (
        (t_c ** c[P_NORM] + t_m ** c[P_NORM]) ** (1.0 / c[P_NORM])
        + prefill / (compute * c[EFF_ATTN])
        + kv / (bandwidth * c[EFF_KV])
        + c[AR_FIXED]
        + c[AR_TOKEN] * n
        + c[LAYERS] * (c[K_SM] / r + 1.0 - c[K_SM])
    )
    t_s = max(t_gpu, c[LAUNCH]) + c[HOST] + c[SEQ] * rows
    v2 = voltage(c, f) ** 2
    dynamic_j = (v2 * c[E_FLOP] * (linear + prefill + decode) + (c[E_BYTE0] + c[E_BYTE1] * v2) * (stream + kv)) * 1e-12
    watts = c[IDLE_W] + c[C_CLK] * f / c[F_MAX] * v2 + dynamic_j / t_s / c[TP]
    return t_s * correction(c, TIME0, f), watts * correction(c, POWER0, f), t_gpu < c[LAUNCH]


@compiled
def iteration(
    c: Floats, mhz: float, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> tuple[float, float, int]:
    """Returns seconds and joules of one iteration, and its regime: 0 GPU-bound, 1 launch-bound, 2 throttled at the TDP.

    `c` has the costs, shape (costs,); `pairs` is the sum over prefills of new (cached + new / 2). The formulas are
    those of EngineModel.iteration.
    """
    if c[FIXED] > 0.0:
        t_s = c[BASE_S] + c[PREFILL_TOKEN_S] * new + c[DECODE_S] * decodes
        return t_s, c[BUSY_W] * t_s, 0
    if c[SECOND] > 0.0:
        return second_iteration(c, mhz, new, cached, pairs, prefills, decodes, context)
    n = new + decodes
    rows = decodes + prefills
    experts = c[EXPERT] * (1.0 - c[EXPERT_MISS] ** n) if c[EXPERT] > 0.0 else 0.0
    linear = c[FLOP_TOKEN] * n + c[FLOP_ROW] * rows
    prefill = c[FLOP_ATTENTION] * pairs
    decode = c[FLOP_ATTENTION] * context
    stream = c[DENSE] + experts + c[HEAD] + c[ACTIVATION] * n
    kv = c[KV_BYTES] * (context + n + cached)
    f = min(max(mhz, c[F_MIN]), c[F_MAX])
    t_s, watts, launch_bound = at_clock(c, f, linear, prefill, decode, stream, kv, n, rows)
    if watts <= c[CAP]:
        return t_s, c[TP] * watts * t_s, 1 if launch_bound else 0
    low, high = c[F_MIN], f
    for _ in range(THROTTLE_BISECTIONS):
        middle = (low + high) / 2.0
        if at_clock(c, middle, linear, prefill, decode, stream, kv, n, rows)[1] > c[CAP]:
            high = middle
        else:
            low = middle
    t_s, watts, _ = at_clock(c, high, linear, prefill, decode, stream, kv, n, rows)
    return t_s, c[TP] * watts * t_s, 2


@compiled
def second_at_clock(c: Floats, f: float, w: tuple[float, ...]) -> tuple[float, float, bool]:
    """Returns what `at_clock` does, by parameter set 2: the formulas are those of core.engine.second_set.

    `c` has the costs, shape (costs,), `w` what `second_iteration` makes of the iteration.
    """
    dense, head, expert, attention, decode, stream, read, busiest, kv, n, rows, big, over = w
    r = f / c[F_MAX]
    compute = c[COMPUTE] * r
    bandwidth = c[BANDWIDTH] * bandwidth_share(f, c[F_BW])
    t_c = (dense / c[S_DENSE_X] + head + expert * (c[S_SKEW] / c[S_EXPERT_X])) / compute
    t_m = (stream + busiest / c[S_EXPERT_M]) / bandwidth
    busy_s = (
        (t_c ** c[P_NORM] + t_m ** c[P_NORM]) ** (1.0 / c[P_NORM])
        + attention / (compute * c[EFF_ATTN])
        + kv / (bandwidth * c[EFF_KV])
        + c[S_ROW] * rows / r
    )
    small_s = (c[S_LAYERS] + c[S_MOE] + c[S_BIG] * big) * (c[K_SM] / r + 1.0 - c[K_SM])
    gpu_s = busy_s + c[AR_FIXED] + c[AR_TOKEN] * n + small_s + c[S_EAGER] * over
    floor_s = max(c[LAUNCH], c[S_FLOOR] + c[S_FLOOR_ROW] * rows)
    t_s = max(gpu_s, floor_s) + c[HOST] + c[SEQ] * rows
    works = min(1.0, (busy_s + c[WAIT_CLK] * (gpu_s - busy_s)) / t_s)
    v2 = voltage(c, f) ** 2
    flop = dense * c[S_E_DENSE] + head + attention + decode + expert * c[S_E_EXPERT]
    moved = stream + read + c[E_KV] * kv
    dynamic_j = (v2 * c[E_FLOP] * flop + (c[E_BYTE0] + c[E_BYTE1] * v2) * moved) * 1e-12 / c[TP]
    gated = 1.0 - c[CLK_GATE] * (1.0 - c[IDLE_SHARE]) * (1.0 - works)
    watts = c[IDLE_W] + c[C_CLK] * r * v2 * gated + (dynamic_j + v2 * c[S_LOGIT] * rows) / t_s
    return t_s * correction(c, TIME0, f), watts * correction(c, POWER0, f), gpu_s < floor_s


@compiled
def second_iteration(
    c: Floats, mhz: float, new: float, cached: float, pairs: float, prefills: float, decodes: float, context: float
) -> tuple[float, float, int]:
    """Returns what `iteration` does, by parameter set 2; `c` has the costs, shape (costs,)."""
    n = new + decodes
    rows = decodes + prefills
    touched = 0.0
    if c[S_BYTES] > 0.0:
        touched = 1.0 - (1.0 + n * c[S_MISS] / c[S_ROUTE]) ** -c[S_ROUTE]
    most = min(1.0, touched + c[S_SPREAD] * (touched * (1.0 - touched)) ** 0.5)
    big = 1.0 if n > c[S_BIG_TOKENS] else 0.0
    pad = c[S_PAD_ROWS] * (1.0 + 3.0 * big) * touched + c[S_PAD_ALL]
    seen = context
    if c[S_FULL] < 1.0:
        seen = c[S_FULL] * context + (1.0 - c[S_FULL]) * min(context, decodes * c[S_WINDOW])
    beyond = min(1.0, max(0.0, (n / c[S_GRAPH] - 1.0) / GRAPH_SLOPE))
    w = (
        c[S_DENSE] * n,
        c[FLOP_ROW] * rows,
        c[S_EXPERT] * n + c[S_PAD] * pad,
        c[FLOP_ATTENTION] * pairs,
        c[S_DECODE] * seen,
        c[DENSE] + c[HEAD] + c[ACTIVATION] * n,
        c[S_BYTES] * touched,
        c[S_BYTES] * most,
        c[KV_BYTES] * (seen + n + cached),
        n,
        rows,
        big,
        max(beyond, c[S_MIX] if prefills > 0.0 else 0.0),
    )
    f = min(max(mhz, c[F_MIN]), c[F_MAX])
    t_s, watts, host_bound = second_at_clock(c, f, w)
    if watts <= c[CAP]:
        return t_s, c[TP] * watts * t_s, 1 if host_bound else 0
    low, high = c[F_MIN], f
    for _ in range(THROTTLE_BISECTIONS):
        middle = (low + high) / 2.0
        if second_at_clock(c, middle, w)[1] > c[CAP]:
            high = middle
        else:
            low = middle
    t_s, watts, _ = second_at_clock(c, high, w)
    return t_s, c[TP] * watts * t_s, 2
