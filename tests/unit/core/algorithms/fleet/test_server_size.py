import pytest

from core.algorithms.fleet.server_size import server_size


@pytest.mark.parametrize(
    ("nodes", "able", "size"),
    [
        ((8, 8), (1, 2, 4, 8), 8),
        ((4, 4, 8, 8), (1, 2, 4, 8), 4),
        ((1, 4, 8, 8), (2, 4, 8), 4),  # an instance of one GPU stands on a node of four: whole nodes' divisor is 1
        ((4, *[8] * 9), (1, 2, 4, 8), 8),  # a tenth of the fleet is not worth halving all servers for
        ((2, 2), (4, 8), None),
        ((), (4,), None),
    ],
)
def test_size_has_nine_tenths_of_the_gpus_when_nodes_differ(nodes, able, size):
    assert server_size(nodes, able) == size
