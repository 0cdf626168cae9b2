"""The limits of connections on a command line."""

from __future__ import annotations

import argparse
import ipaddress

import pytest

from pools.gateway.http import connection_options
from pools.gateway.http.connections import ConnectionLimits


def read(*words: str) -> ConnectionLimits:
    parser = argparse.ArgumentParser()
    connection_options.add_arguments(parser)
    return connection_options.from_arguments(parser.parse_args(words))


def test_defaults_are_those_of_the_limits() -> None:
    assert read() == ConnectionLimits()


def test_each_option_sets_its_limit() -> None:
    for option in connection_options.OPTIONS:
        assert getattr(read(f"--max-{option.name}", "17"), option.field) == 17 * option.unit_bytes
    assert read("--proxies", "10.0.0.0/8, ::1").proxies == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("::1"),
    )
    assert read("--proxies", "none").proxies == ()


def test_there_are_no_more_places_without_a_key_than_places() -> None:
    assert read("--max-connections", "50").unkeyed == 50


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("--max-unkeyed-per-s", "0", "between 1 and 1000000"),
        ("--max-connections", "-1", "between 1 and 1000000"),
        ("--max-held-mib", "15", "between 16 and 1000000"),
        ("--max-heads-mib", "many", "between 1 and 1000000"),
        ("--proxies", "proxy.example", "proxy.example"),
    ],
)
def test_value_out_of_bounds_is_refused_with_the_remedy(
    option: str, value: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(f"{option}={value}")
    message = capsys.readouterr().err
    assert option in message
    assert remedy in message
