"""The example of docs/ledger.md, settled, against the table that stands there."""

import pytest

from greenserve.env import ROOT
from pools import demo
from pools.models import Gpu, Node, Tenant
from telemetry.ledger import settled_reader, settlement
from telemetry.models import RequestRecord, RequestShare
from tests.fakes import metering
from tests.fakes.house import moment, start_instance
from tests.fakes.metering import START
from tests.oracles import settled_lines

pytestmark = pytest.mark.django_db
DOCS = ROOT / "docs" / "ledger.md"


def table():
    lines = DOCS.read_text().split("## An example")[1].split("## Samples")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows[1:]}


@pytest.fixture
def settled(db):
    service = demo.load()
    node = Node.objects.get(name="loc1-a100")
    Gpu.objects.filter(node=node).update(gpu_type="of-another-make")
    instance = start_instance(service.pools.first(), node, tp=2)
    site = node.cluster.site
    metering.intensity(site, START, 300.0, 400.0)
    metering.rates(site, price_per_kwh=0.30)
    metering.meters(instance, START + 302, running=lambda at_s: 1 if at_s <= START + 200 else 0)
    tenants = [Tenant.objects.get_or_create(name=name)[0] for name in ("A", "B")]
    requests = (("r1", 0, 0, 100, 900), ("r2", 1, 100, 200, 900), ("r3", 1, 150, 200, 400))
    for name, tenant, start_s, end_s, output in requests:
        metering.request(
            *(instance, START + start_s, name, tenants[tenant]),
            prompt_tokens=1_000,
            output_tokens=output,
            ttft_s=10.0,
            e2e_s=float(end_s - start_s),
        )
    assert settlement.settle(moment(START + 1_300)) == 1
    return tenants


def row(amounts):
    return [
        amounts["energy_uj"] / 1e6,
        amounts["prefill_uj"] / 1e6,
        amounts["gpu_us"] / 1e6,
        amounts["carbon_ug"] / 1e6,
        amounts["cost_nano"] / 1e9,
        amounts["rental_nano"] / 1e9,
        amounts["embodied_ug"] / 1e6,
    ]


def test_window_of_the_example_is_the_tables_when_settled(settled):
    expected = table()
    span = (moment(START), moment(START + 300))
    (whole,) = settled_lines.totals(*span).values()
    assert row(whole) == pytest.approx(expected["window"], rel=1e-4)
    by_kind = settled_lines.totals(*span, by=("kind", "tenant_id"))
    assert row(by_kind["idle", None]) == pytest.approx(expected["idle"], rel=1e-4)
    a, b = (row(by_kind["serving", tenant.pk]) for tenant in settled)
    assert a == pytest.approx(expected["r1"], rel=1e-4)
    assert b == pytest.approx([x + y for x, y in zip(expected["r2"], expected["r3"], strict=True)], rel=1e-4)


@pytest.mark.parametrize("name", ["r1", "r2", "r3"])
def test_request_of_the_example_is_the_tables_when_settled(settled, name):
    joules, prefill_j, gpu_s, grams, dollars, _, _ = table()[name]
    share = RequestShare.objects.get(request_id=name)
    assert (share.prefill_uj + share.decode_uj, share.prefill_uj) == (round(joules * 1e6), round(prefill_j * 1e6))
    use = settled_reader.of_request(RequestRecord.objects.get(request_id=name))
    found = [use.energy_j, use.prefill_j, use.gpu_s, use.carbon_gco2e, use.cost]
    assert found == pytest.approx([joules, prefill_j, gpu_s, grams, dollars], rel=1e-4)
    assert use.measured
