"""One address of Redis for all clients: a server's, or sentinels'."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pools import redis_address
from pools.agent.app import _find_sentinels, app
from pools.redis_address import Sentinels

URL = "sentinel://me:p%40ss@one:26379,[fd00::2]:26380,three/main?db=3&sentinel_password=other"


def test_address_of_sentinels_is_read() -> None:
    assert redis_address.sentinels(URL) == Sentinels(
        (("one", 26379), ("fd00::2", 26380), ("three", 26379)),
        "main",
        {"db": 3, "username": "me", "password": "p@ss"},
        {"password": "other"},
    )
    assert redis_address.sentinels("redis://cache/0") is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sentinel://one:26379", "name of the master"),
        ("sentinel://one/a/b", "name of the master"),
        ("sentinel://one,/main", "host is missing"),
        ("sentinel://one:port/main", "port"),
        ("sentinel://one/main?db=x", "invalid literal"),
        ("sentinel://one/main?retries=3", "unknown options: retries"),
    ],
)
def test_address_is_refused_when_it_is_not_whole(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        redis_address.sentinels(url)


def test_celery_gets_the_same_in_its_own_words() -> None:
    url, options = redis_address.celery_broker(URL)
    assert url == (
        "sentinel://me:p%40ss@one:26379;sentinel://me:p%40ss@[fd00::2]:26380;sentinel://me:p%40ss@three:26379/3"
    )
    assert options == {"master_name": "main", "sentinel_kwargs": {"password": "other"}}
    assert redis_address.celery_broker("redis://cache/0") == ("redis://cache/0", {})
    assert redis_address.celery_broker("unix:///r.sock?db=2") == ("redis+socket:///r.sock?virtual_host=2", {})


def test_client_asks_sentinels_with_their_credentials_and_servers_with_theirs() -> None:
    pool: Any = redis_address.connect(URL, socket_timeout=2.0).connection_pool
    assert pool.service_name == "main"
    assert (pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == (3, "p@ss")
    asked = [one.connection_pool.connection_kwargs for one in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"], one["password"], one["socket_timeout"]) for one in asked] == [
        ("one", 26379, "other", 2.0),
        ("fd00::2", 26380, "other", 2.0),
        ("three", 26379, "other", 2.0),
    ]


def test_agent_tells_celery_where_sentinels_are_and_keeps_the_address() -> None:
    class Settings:
        broker_url, broker_read_url, broker_write_url = URL, None, None
        broker_transport_options: ClassVar[dict[str, Any]] = {"socket_timeout": 10}

    found = Settings()
    _find_sentinels(app, found)
    assert found.broker_read_url == found.broker_write_url == redis_address.celery_broker(URL)[0]
    assert found.broker_transport_options["master_name"] == "main"
    assert found.broker_transport_options["socket_timeout"] == 10
    assert found.broker_url == URL
