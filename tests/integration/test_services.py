"""Where the tests' own database comes from."""

import os

from django.db import connection

from tests.services import TEMPLATE


def test_database_of_a_worker_is_a_copy_of_the_migrated_one(django_db_setup):
    """Else each would apply all migrations once more, which takes half a minute when all do."""
    assert connection.settings_dict["TEST"].get("TEMPLATE") == os.environ.get(TEMPLATE)
