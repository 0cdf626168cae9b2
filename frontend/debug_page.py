"""Django's page of an error, which `GREENSERVE_DEBUG` shows: without addresses that may have a password in them."""

import re

from django.views.debug import SafeExceptionReporterFilter


class HiddenSettings(SafeExceptionReporterFilter):
    """Hides what Django hides, and addresses of Redis."""

    hidden_settings = re.compile(f"{SafeExceptionReporterFilter.hidden_settings.pattern}|(REDIS|BROKER)_URL", re.I)
