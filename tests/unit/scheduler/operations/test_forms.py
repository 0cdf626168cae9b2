"""The forms' field of JSON: what cannot be read is said at the field."""

import pytest
from django.core.exceptions import ValidationError

from scheduler.operations.configure.forms import JsonField


def test_json_of_a_form_is_refused_when_it_is_nested_without_end():
    assert JsonField().clean('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValidationError, match="nested too deeply"):
        JsonField().clean("[" * 100_000)
