"""What pools have when a carbon plan is carried out."""

from core.types import ChoosePartition, PoolKey, SetGpuBudget
from pools.models import Partition, Pool, RequestClass, Service, Site
from scheduler.control.active_operations import Pin
from scheduler.control.apply.budgets import after, within

OLD, NEW = Partition(pk=1, name="old"), Partition(pk=2, name="new")
NORTH, SOUTH = Site(pk=1, name="north"), Site(pk=2, name="south")
SERVICE = Service(pk=1, name="chat", partition=OLD)
COMMANDS = (ChoosePartition("new"), SetGpuBudget(PoolKey("north", "S"), {"A100-80GB": 4, "H100-SXM-80GB": 0}))


def pool(pk: int, site: Site, partition: Partition, budget: dict[str, int], workers: dict[str, int]) -> Pool:
    request_class = RequestClass(pk=partition.pk, name="S", partition=partition)
    return Pool(pk=pk, service=SERVICE, site=site, request_class=request_class, gpu_budget=budget, workers=workers)


def test_pools_have_the_plans_budgets_and_the_workers_that_fit() -> None:
    fits, over = {"A100-80GB/TP4": 1}, {"A100-80GB/TP4": 2}
    pools = [
        pool(1, NORTH, NEW, {"A100-80GB": 8}, fits),
        pool(2, SOUTH, NEW, {"A100-80GB": 8}, fits),
        pool(3, NORTH, OLD, {"A100-80GB": 8}, fits),
    ]
    assert after(COMMANDS, NEW, pools, ()) == {1: ({"A100-80GB": 4}, fits), 2: ({}, {}), 3: ({}, {})}
    pools[0].workers = over
    assert after(COMMANDS, NEW, pools, ())[1] == ({"A100-80GB": 4}, {})


def test_pinned_pool_keeps_what_it_has_when_a_plan_does_not_name_it() -> None:
    own = ({"A100-80GB": 2}, {"A100-80GB/TP2": 1})
    pin = Pin(2, SOUTH.pk, PoolKey("south", "S"), "new", {})
    assert after(COMMANDS, NEW, [pool(2, SOUTH, NEW, *own)], [pin]) == {2: own}


def test_workers_are_within_a_budget_when_it_has_their_gpus_of_each_type() -> None:
    assert within({"A100-80GB/TP4": 2}, {"A100-80GB": 8})
    assert not within({"A100-80GB/TP4": 2, "H100-SXM-80GB/TP1": 1}, {"A100-80GB": 8})
    assert within({}, {})
