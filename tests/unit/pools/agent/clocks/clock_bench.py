"""One engine under the clock loop, with a fake actuator: what tests of clocks share."""

from __future__ import annotations

from typing import Any

from core.ports import EngineReading
from core.types import Limits
from pools.agent.clocks.clock_loop import ClockLoop
from pools.agent.clocks.clock_requests import ClockRequests
from pools.agent.clocks.engine_figures import Figures
from pools.agent.clocks.engine_view import EngineView
from pools.wire import ClockDecision, ClockPolicy, ClockRequest
from tests.fakes.node import FakeFrequencyActuator, engine_reading

TOP_MHZ, BOTTOM_MHZ = 1410.0, 210.0
LIMITS = Limits(ttft_s=0.6, tpot_s=0.15, e2e_s=30.0)


def view(reading: Any = "idle", **changes: Any) -> EngineView:
    values: dict[str, Any] = {
        "uid": "u1",
        "gpu_uuids": ("G0", "G1", "G2", "G3"),
        "sm_clock_mhz": TOP_MHZ,
        "min_mhz": BOTTOM_MHZ,
        "max_mhz": TOP_MHZ,
        "limits": LIMITS,
        "reading": engine_reading() if reading == "idle" else reading,
        "model": "Llama3-70B",
        "engine": "vllm-v1",
        "gpu_type": "A100-80GB",
    }
    return EngineView(**{**values, **changes})


def request(mhz: float, gateway: str = "g1", uid: str = "u1", at_s: float = 0.0, lease_s: float = 10.0) -> ClockRequest:
    return ClockRequest(uid, gateway, at_s, mhz, lease_s, "within_limits", f"{gateway} asks for {mhz:.0f} MHz.")


class ClockBench:
    def __init__(self, policy: ClockPolicy, figures: Figures | None = None) -> None:
        self.policy = policy
        self.actuator = FakeFrequencyActuator()
        self.requests = ClockRequests()
        self.loop = ClockLoop(self.actuator, self.requests, figures)
        self.now_s = 1000.0
        self.rows: list[ClockDecision] = []

    def tick(self, engine: EngineView | None = None, after_s: float = 1.0) -> list[ClockDecision]:
        self.now_s += after_s
        rows = self.loop.tick(self.now_s, self.policy, [engine or view()])
        self.rows += rows
        return rows

    def glance(self, after_s: float, reading: EngineReading | None = None) -> list[ClockDecision]:
        self.now_s += after_s
        rows = self.loop.glance(self.now_s, {} if reading is None else {"u1": reading})
        self.rows += rows
        return rows

    def ask(self, mhz: float, gateway: str = "g1", lease_s: float = 10.0) -> None:
        self.requests.put(request(mhz, gateway, at_s=self.now_s, lease_s=lease_s), self.now_s)

    @property
    def mhz(self) -> float:
        """The clock that the GPUs have, leases that lapse aside."""
        last = self.actuator.calls[-1]
        return TOP_MHZ if last[0] == "reset" else float(last[2])  # type: ignore[arg-type]

    @property
    def calls(self) -> int:
        return len(self.actuator.calls)
