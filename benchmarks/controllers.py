"""How long the controllers take to decide, all papers, one run: `python -m benchmarks.controllers [--json]`.

Milliseconds. What is asked is what this product wants of itself; the papers' own figures are on their machines.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks import (
    controllers_dynamollm,
    controllers_freesh,
    controllers_greenserve,
    controllers_muserve_dynaserve,
    controllers_throttllem,
)

# What -> (figure in the parts' results, asked at most in ms, the paper's own figure)
ASKED = {
    "FREESH's carbon epoch, 3 sites x 2 partitions x 4 classes x 4 modes x 6 steps, proven optimum": (
        "freesh.freesh_fleet_3_sites_2_partitions_4_classes_4_modes.p50_ms",
        25.0,
        "80 ms to 19.36 s",
    ),
    "20 sites x 4 partitions x 9 classes x 8 modes x 6 steps, to a gap of 0.1 %": (
        "freesh.freesh_fleet_20_sites_4_partitions_9_classes_8_modes.p50_ms",
        2000.0,
        "",
    ),
    "shard program, 128 GPUs": ("dynamollm.shard_step_128_gpus.p50_ms", 20.0, "hundreds of ms"),
    "throttLL'eM's admission and clock, batch 256, 50 clocks (p99)": (
        "throttllem.admission_and_clock_search.p99_ms",
        2.0,
        "35 ms",
    ),
    "LLF over 10,000 queued, a tick": ("freesh.freesh_llf_line_10000_queued.p50_ms", 1.0, "5 ms"),
    "LLF inside an engine, 10,000 waiting, a tick": (
        "freesh.freesh_llf_engine_10000_waiting_256_running.p50_ms",
        1.0,
        "5 ms",
    ),
    "split decision": ("other.dynaserve_split_128_running_8_waiting.p50_us", 0.2, "14 to 17 ms"),
    "MIAD for 1,000 GPUs": ("freesh.freesh_miad_1000_gpus.p50_ms", 1.0, "20 ms"),
    "GreenServe's scale turn, 20 instances, 8,192 requests": ("greenserve.scale_turn_20_instances.p50_ms", 5.0, ""),
    "GreenServe's clocks for 1,000 GPUs in instances of 8": ("greenserve.clocks_1000_gpus.p50_ms", 1.0, ""),
}


def measure() -> dict[str, Any]:
    return {
        "freesh": controllers_freesh.timings(),
        "dynamollm": controllers_dynamollm.measure(),
        "throttllem": controllers_throttllem.run(),
        "greenserve": controllers_greenserve.timings(),
        "other": controllers_muserve_dynaserve.timings(),
    }


def milliseconds(found: dict[str, Any], path: str) -> float:
    """The figure at a path. Raises KeyError when its part no longer measures it."""
    value: Any = found
    for key in path.split("."):
        value = value[key]
    return float(value) / 1000.0 if path.endswith("_us") else float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="all figures, and not only those asked for")
    given = parser.parse_args()
    found = measure()
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for what, (path, most_ms, paper) in ASKED.items():
        value = milliseconds(found, path)
        print(f"{what}: {value:.3g} ms, {value / most_ms:.2f} of {most_ms:g} ms{f' [paper: {paper}]' if paper else ''}")


if __name__ == "__main__":
    main()
