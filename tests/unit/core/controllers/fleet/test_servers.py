"""Servers go off once idling has cost a boot, and stay on where the load could need them sooner than they boot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.controllers.fleet.servers import SHUTDOWN_S, Server, ServersConfig, ServersObservation, step
from core.types import Reason, SwitchServer

BREAK_EVEN_S = 300.0 + SHUTDOWN_S


def server(name: str, **values: object) -> Server:
    own = Server(name, "east", {"A100-80GB": 8}, on=True, wanted=False, idle_s=1e4, boot_s=300.0)
    return replace(own, **values)  # type: ignore[arg-type]


def seen(*servers: Server, spare: int = 0, **values: object) -> ServersObservation:
    place, on = ("east", "A100-80GB"), [own for own in servers if own.on]
    free = {place: sum(8 for own in on if not own.wanted)}
    found = ServersObservation(0.0, servers, free, {place: spare}, on={"east": len(on)})
    return replace(found, **values)  # type: ignore[arg-type]


def orders(observation: ServersObservation, config: ServersConfig | None = None) -> dict[str, bool]:
    _, effects = step(None, observation, config or ServersConfig())
    return {command.server: command.on for command in effects.commands if isinstance(command, SwitchServer)}


@pytest.mark.parametrize(("idle_s", "goes"), [(BREAK_EVEN_S - 1.0, False), (BREAK_EVEN_S, True)])
def test_server_goes_off_when_idling_has_cost_a_boot(idle_s: float, goes: bool) -> None:
    assert orders(seen(server("a", idle_s=idle_s))) == ({"a": False} if goes else {})


def test_boot_that_draws_more_is_waited_for_longer() -> None:
    one = seen(server("a", idle_s=1.5 * BREAK_EVEN_S))
    assert orders(one, ServersConfig(boot_power=2.0)) == {}
    assert orders(one, ServersConfig(idle_s=10.0, boot_power=2.0)) == {"a": False}


@pytest.mark.parametrize("values", [{"wanted": True}, {"kept": "it is in maintenance"}])
def test_server_stays_on_when_it_is_needed_or_kept(values: dict[str, object]) -> None:
    assert orders(seen(server("a", **values))) == {}


def test_server_with_an_instance_is_switched_on() -> None:
    observation = seen(server("a", on=False, wanted=True), server("b", on=False))
    assert orders(observation) == {"a": True}
    _, effects = step(None, observation, ServersConfig())
    assert effects.rationale.reason is Reason.CONGESTED
    assert "300 s (assumed)" in effects.rationale.summary


def test_spare_gpus_stay_on_and_the_longest_idle_goes_first() -> None:
    idle = [server(name, idle_s=1e4 + n) for n, name in enumerate("abc")]
    assert orders(seen(*idle, spare=9)) == {"c": False}
    assert orders(seen(*idle, spare=17)) == {}
    assert orders(seen(*idle)) == {"a": False, "b": False, "c": False}


def test_servers_are_switched_on_until_the_spare_gpus_are_there_and_the_soonest_boots_first() -> None:
    off = [server("a", on=False), server("b", on=False, boot_s=100.0), server("c", on=False, boot_s=200.0)]
    assert orders(seen(*off, spare=1)) == {"b": True}
    assert orders(seen(*off, spare=16)) == {"b": True, "c": True}


def test_last_server_of_a_site_with_a_floor_stays_on() -> None:
    pair = server("a"), server("b", idle_s=2e4)
    assert orders(seen(*pair, alone=frozenset({"east"}))) == {"b": False}


@given(
    idle=st.lists(st.floats(0.0, 1e5), min_size=1, max_size=6),
    on=st.lists(st.booleans(), min_size=6, max_size=6),
    spare=st.integers(0, 50),
)
def test_what_is_switched_leaves_the_spare_gpus_on_and_is_not_switched_back(
    idle: list[float], on: list[bool], spare: int
) -> None:
    servers = [server(str(n), idle_s=idle_s, on=on[n]) for n, idle_s in enumerate(idle)]
    made = orders(seen(*servers, spare=spare))
    after = [replace(own, on=made.get(own.name, own.on), idle_s=0.0) for own in servers]
    free = 8 * sum(own.on for own in after)
    assert free >= min(spare, 8 * len(servers))
    assert all(own.on != on[int(own.name)] or own.name not in made for own in after)
    assert orders(seen(*after, spare=spare)) == {}, "at once it would be switched back"
