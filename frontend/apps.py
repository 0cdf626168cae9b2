from django.apps import AppConfig


class FrontendConfig(AppConfig):
    name = "frontend"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from .people import session_limits

        user_logged_in.connect(session_limits.begin, dispatch_uid="frontend.people.session_limits")
