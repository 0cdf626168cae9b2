"""A certificate is renewed in time, through keys of the node's own, while its connections go on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography import x509
from django.utils import timezone

from pools import wire
from pools.access.audit import Actor
from pools.agent.certificate_renewal import CertificateRenewal
from pools.agent.join_messages import GpuOffer, NodeOffer
from pools.agent.node_identity import NodeIdentity
from pools.agent.vllm.engine_access import EngineCertificate, EngineTls
from pools.engine_trust import names_of
from pools.models import Cluster, Site
from pools.models import NodeIdentity as IdentityRow
from pools.registration import join_tokens, node_identities, node_users
from pools.registration.authority import LIFETIME

pytestmark = pytest.mark.django_db


class Joined:
    """A node that joined at `began`; `now` is its clock."""

    def __init__(self, folder: Path) -> None:
        cluster = Cluster.objects.create(site=Site.objects.create(name="o", label="O", grid_zone="NO1"), name="main")
        _, secret = join_tokens.issue(Actor(), cluster)
        self.identity = NodeIdentity.of(folder, "n1")
        self.now = self.began = timezone.now()
        gpu = GpuOffer("GPU-a", 0, "NVIDIA A100-SXM4-80GB", "A100-80GB", 85_899_345_920, 210.0, 1410.0, 400.0)
        offer = NodeOffer(secret, "n1", "570", [gpu], request=self.identity.request("n1"))
        admitted = node_identities.join(offer, "10.0.0.1", self.began)
        self.identity.keep(admitted.certificate.certificate, admitted.certificate.authority, "")
        self.url = admitted.redis_url
        self.renewal = CertificateRenewal(self.url, "n1", self.identity, now=lambda: self.now)

    def serial(self) -> str:
        return f"{x509.load_pem_x509_certificate(self.identity.certificate.read_bytes()).serial_number:x}"


@pytest.fixture
def joined(redis_client: redis.Redis, tmp_path: Path, settings: Any) -> Any:
    settings.GREENSERVE_SECRETS_DIR = tmp_path / "secrets"
    yield Joined(tmp_path)
    node_users.bring_up_to_date(redis_client, node_users.Wanted({}, {}))


def serials(client: redis.Redis) -> set[str]:
    return {serial.decode() for serial in client.hkeys(wire.CERTIFICATES_KEY)}  # type: ignore[union-attr]


def test_certificate_is_renewed_when_a_third_of_its_time_is_left(redis_client: redis.Redis, joined: Joined) -> None:
    first, key = joined.serial(), joined.identity.key.read_bytes()
    joined.renewal.look()
    assert not redis_client.exists(wire.certificate_asked_key("n1")), "it is early"
    joined.now = joined.began + LIFETIME * 0.7
    joined.renewal.look()
    assert joined.serial() == first
    node_identities.follow(redis_client, joined.now)
    joined.renewal.look()
    second = joined.serial()
    assert second != first
    assert joined.identity.key.read_bytes() != key
    assert serials(redis_client) == {first, second}, "the one before holds until it ends"
    with redis.Redis.from_url(joined.url) as client:
        assert client.ping()
    node_identities.follow(redis_client, joined.began + LIFETIME + timedelta(hours=1))
    assert serials(redis_client) == {second}
    with redis.Redis.from_url(joined.url) as client:
        assert client.ping(), "its user goes on"


def test_engines_of_the_node_show_the_renewed_certificate_where_they_are_reached(
    redis_client: redis.Redis, joined: Joined, tmp_path: Path
) -> None:
    def take_over(*names: str) -> None:
        joined.now += LIFETIME * 0.7
        renewal = CertificateRenewal(joined.url, "n1", joined.identity, names, lambda: joined.now)
        renewal.look()
        node_identities.follow(redis_client, joined.now)
        renewal.look()

    identity = joined.identity
    take_over("10.0.0.77")
    own = tmp_path / "own.pem"
    served = EngineCertificate(EngineTls(identity.certificate, identity.key, identity.authority), own, "10.0.0.77")
    first = joined.serial()
    take_over("10.0.0.77")
    served.renew()
    shown = x509.load_pem_x509_certificate(own.read_bytes())
    assert f"{shown.serial_number:x}" == joined.serial() != first
    assert {"n1", "10.0.0.77", "127.0.0.1", "::1", "localhost"} <= set(names_of(shown))


@pytest.mark.parametrize(
    ("request_", "after"),
    [(b"no request", LIFETIME * 0.7), (b"x" * 100_000, LIFETIME * 0.7), (None, timedelta(days=1))],
    ids=["not a request", "too long", "too early"],
)
def test_nothing_is_signed_when_it_is_wrong_or_too_early(
    redis_client: redis.Redis, joined: Joined, request_: bytes | None, after: timedelta
) -> None:
    asked = request_ or joined.identity.request("n1").encode()
    redis_client.set(wire.certificate_asked_key("n1"), asked)
    node_identities.follow(redis_client, joined.began + after)
    assert IdentityRow.objects.count() == 1
    assert not redis_client.exists(wire.certificate_answer_key("n1"))


def test_renewal_asks_again_when_no_answer_came(redis_client: redis.Redis, joined: Joined) -> None:
    joined.now = joined.began + LIFETIME * 0.7
    joined.renewal.look()
    redis_client.delete(wire.certificate_asked_key("n1"))
    joined.renewal.look()
    assert redis_client.exists(wire.certificate_asked_key("n1"))


def test_identity_that_ended_lets_nobody_in(redis_client: redis.Redis, joined: Joined) -> None:
    node_identities.follow(redis_client, joined.began + LIFETIME + timedelta(seconds=1))
    assert serials(redis_client) == set()
    with redis.Redis.from_url(joined.url) as client, pytest.raises(redis.RedisError):
        client.ping()
