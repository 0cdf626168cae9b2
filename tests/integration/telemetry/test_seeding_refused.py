"""No past is made up for a fleet that is not the demo's."""

from datetime import UTC, datetime

import pytest

from pools.models import Node
from telemetry.models import SyntheticHistory
from telemetry.seeding import history

NOW = datetime(2026, 3, 4, 3, 17, 30, tzinfo=UTC)


@pytest.mark.django_db
def test_another_fleet_gets_no_past_when_it_is_not_the_demo(demo_rows, settings):
    settings.DEMO, settings.DEMO_DAYS = False, 0
    with pytest.raises(ValueError, match="for the demo fleet alone"):
        history.seed(NOW)
    settings.DEMO = True
    Node.objects.filter(name="loc1-h100").update(simulated=False)
    with pytest.raises(ValueError, match="for the demo fleet alone"):
        history.seed(NOW)
    assert not SyntheticHistory.objects.exists()
