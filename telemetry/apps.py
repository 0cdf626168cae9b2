from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    name = "telemetry"

    def ready(self) -> None:
        from telemetry.alerts import alert_settings  # noqa: F401 - registers its check of the settings
