"""The ledger of a GPU in two slices: what its meter counted, divided among the engines on it."""

import pytest
from django.db.models import Sum

from core.engine.engine_params import gpu
from pools.models import Gpu, Instance, InstanceGpu, Node, Pool
from telemetry.ledger import posting
from telemetry.models import EnergyEntry, InstanceSample
from telemetry.storage import time_partitions
from tests.fakes.house import moment, sample
from tests.fakes.metering import START
from tests.oracles.meter_balance import balance

pytestmark = pytest.mark.django_db
POWER_W, SECONDS = 300.0, 40


@pytest.fixture
def engines(demo_rows: None) -> list[Instance]:
    """Two engines on the halves of one GPU; the first has three times the tokens of the second."""
    node, pools = Node.objects.get(name="loc1-a100"), list(Pool.objects.all()[:2])
    device, found = Gpu.objects.get(uuid="SIM-loc1-a100-0"), []
    for number, pool in enumerate(pools):
        made = Instance.objects.create(
            pool=pool, node=node, model_card=pool.service.model_card, gpu_type="A100-80GB/2", tp=1, state="ready"
        )
        Instance.objects.filter(pk=made.pk).update(created_at=moment(START - 100.0))
        InstanceGpu.objects.create(instance=made, gpu=device, slice=number)
        found.append(made)
    time_partitions.ensure({moment(START).date()})
    for second in range(SECONDS):
        at_s = START + second
        sample(device, at_s, 1e6 + POWER_W * second, found[0], power_w=POWER_W, running=1)
        for made, tokens in zip(found, (3.0, 1.0), strict=True):
            InstanceSample.objects.create(
                at=moment(at_s),
                instance=made,
                state="ready",
                running=1,
                prompt_tokens_total=0.0,
                generation_tokens_total=tokens * second,
            )
    return found


def test_engines_on_slices_have_their_parts_and_these_add_up(engines: list[Instance]) -> None:
    posting.post(moment(START + SECONDS))
    assert balance(Gpu.objects.get(uuid="SIM-loc1-a100-0")).difference_uj == 0
    parts = dict(
        EnergyEntry.objects.filter(kind="serving").values_list("instance_id").annotate(Sum("energy_uj")).order_by()
    )
    whole_j = sum(parts.values()) / 1e6
    seconds = whole_j / POWER_W
    assert seconds >= 20.0
    idle_w = gpu("A100-80GB").idle_w
    for made, share in zip(engines, (0.75, 0.25), strict=True):
        assert parts[made.pk] / 1e6 == pytest.approx(seconds * (idle_w / 2.0 + (POWER_W - idle_w) * share), rel=0.05)
    times = EnergyEntry.objects.filter(kind="serving").values_list("pool_id").annotate(Sum("gpu_us")).order_by()
    assert {pool for pool, _ in times} == {made.pool_id for made in engines}
    assert len({time for _, time in times}) == 1
