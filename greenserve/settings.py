"""Django settings. Values from the environment come through `greenserve.env`; adapters are named by dotted path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dj_database_url
from csp.constants import NONE, SELF, UNSAFE_INLINE

from greenserve import env
from greenserve.servers import embedded, server_folders
from pools import masking, redis_address
from pools.registration.web_address import WebAddress

ENV = env.read()
REDIS_URL = ENV.redis_url or embedded.redis_url(ENV.var_dir)
masking.mask_logs(*ENV.secrets, *masking.passwords(REDIS_URL))
BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = ENV.secret_key
DEBUG = ENV.debug
GREENSERVE_WEB_ADDRESS = WebAddress(
    *(ENV.public_url, ENV.web_host, ENV.web_port, ENV.web_names, ENV.https), ENV.join_port, ENV.nodes_host
)
ALLOWED_HOSTS = GREENSERVE_WEB_ADDRESS.hosts()

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_htmx",
    "csp",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "pools",
    "telemetry",
    "scheduler",
    "frontend",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
]

MIDDLEWARE = [
    "pools.access.audit.OriginMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "frontend.fragments.FragmentGzipMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "frontend.people.session_limits.SessionMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "frontend.reader_choices.TimeZoneMiddleware",
    "frontend.people.sign_in.AccountFirstMiddleware",
    "pools.engine_knowledge.EngineKnowledgeMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

ROOT_URLCONF = "greenserve.urls"
ASGI_APPLICATION = "greenserve.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "frontend.context.page",
            ]
        },
    }
]

# Without DATABASE_URL and REDIS_URL the embedded servers' sockets under var/ are used; there is no other fall-back.
DATABASES = {"default": dj_database_url.parse(ENV.database_url or embedded.database_url(ENV.var_dir))}
DATABASES["default"].setdefault("OPTIONS", {})["connect_timeout"] = 5
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"]["CONN_MAX_AGE"] = 60
GREENSERVE_SECRETS_DIR = ENV.secrets_dir
GREENSERVE_SIMULATED_NODES = ENV.var_dir / "run" / "simnodes.json"  # the ports of their control APIs
GREENSERVE_JOIN_PORT = ENV.join_port
GREENSERVE_RELAY_PORT = ENV.relay_port if ENV.redis_url is None else None  # a server of one's own needs no relay
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
SERVESTATIC_USE_FINDERS = True  # served from the packages: nothing is collected


def keep_versions(headers: Any, path: str, url: str) -> None:
    """A file that has its version in its name is kept by browsers for good."""
    if re.search(r"-\d+\.\d+\.\d+\.min\.js$", url):
        headers["Cache-Control"] = "max-age=31536000, public, immutable"


SERVESTATIC_ADD_HEADERS_FUNCTION = keep_versions

DEFAULT_EXCEPTION_REPORTER_FILTER = "frontend.debug_page.HiddenSettings"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
# People (docs/people.md). allauth has the second step and OIDC; tries are counted by frontend.people.sign_in_limits.
ACCOUNT_ADAPTER = "frontend.people.adapters.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_RATE_LIMITS = False
ACCOUNT_UNIQUE_EMAIL = False
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}", "OPTIONS": options}
    for name, options in (
        ("UserAttributeSimilarityValidator", {}),
        ("MinimumLengthValidator", {"min_length": 12}),
        ("CommonPasswordValidator", {}),
        ("NumericPasswordValidator", {}),
    )
]
MFA_ADAPTER = "frontend.people.adapters.MfaAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_ISSUER = "GreenServe"
SOCIALACCOUNT_ADAPTER = "frontend.people.adapters.SocialAdapter"
SOCIALACCOUNT_LOGIN_ON_GET = True  # a link: a form that is sent on to another host breaks form-action
SOCIALACCOUNT_REQUESTS_TIMEOUT = 10
SOCIALACCOUNT_PROVIDERS: dict[str, Any] = {}
if ENV.oidc is not None:
    SOCIALACCOUNT_PROVIDERS["openid_connect"] = {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "sso",
                "name": ENV.oidc.name,
                "client_id": ENV.oidc.client_id,
                "secret": ENV.oidc.client_secret.reveal(),
                "settings": {"server_url": ENV.oidc.url},
            }
        ],
    }
GREENSERVE_PROXIES = ENV.proxies
GREENSERVE_SESSION_S, GREENSERVE_SESSION_IDLE_S = ENV.session_hours * 3600, ENV.session_idle_minutes * 60
SESSION_COOKIE_AGE = round(GREENSERVE_SESSION_S)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
if ENV.proxies:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
if ENV.https:
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = True
    # Of this machine and its network, by http: probes, Prometheus, gateways that fetch files and batches.
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^metrics", r"^v1/", r"^api/v1/nodes/(join|authority)/$"]
    SECURE_HSTS_SECONDS = 365 * 86_400
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SILENCED_SYSTEM_CHECKS = ["security.W021"]  # being on browsers' lists is for the domain's owner to ask for
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF, UNSAFE_INLINE],  # Plotly sets style attributes
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "frontend.api.rest.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PAGINATION_CLASS": "frontend.api.rest.paging.Pages",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["frontend.api.rest.filters.Filters"],
    "DEFAULT_SCHEMA_CLASS": "frontend.api.rest.schema.Schema",
    "DEFAULT_THROTTLE_CLASSES": ["frontend.api.rest.rate_limits.ActorThrottle"],
    "EXCEPTION_HANDLER": "frontend.api.rest.problems.handle",
}
# Requests a minute of each person or token; what changes something counts apart.
GREENSERVE_API_LIMITS = {"reads": 1_200, "writes": 300}
SPECTACULAR_SETTINGS = {
    "TITLE": "GreenServe",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SERVE_URLCONF": "frontend.api.schema_urls",
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None, "docExpansion": "none"},
    "POSTPROCESSING_HOOKS": ["frontend.api.rest.schema.finish"],
}

# Kombu's own spelling of a Redis socket and of its database number.
CELERY_BROKER_URL, OF_SENTINELS = redis_address.celery_broker(REDIS_URL)
CELERY_TASK_DEFAULT_QUEUE = "epochs"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TIME_LIMIT = 120
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 300,
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    **OF_SENTINELS,
}
CELERY_BEAT_SCHEDULER = "greenserve.beat:MonotonicScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1

# Mail: none is sent without GREENSERVE_EMAIL_URL, and what wanted to send some says so.
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
EMAIL_TIMEOUT = 15
DEFAULT_FROM_EMAIL = SERVER_EMAIL = ENV.mail_from
MAIL_SERVER = ENV.mail_server
if MAIL_SERVER is not None:
    EMAIL_HOST, EMAIL_PORT, EMAIL_HOST_USER = MAIL_SERVER.host, MAIL_SERVER.port, MAIL_SERVER.user
    EMAIL_HOST_PASSWORD = MAIL_SERVER.password.reveal() if MAIL_SERVER.password is not None else ""
    EMAIL_USE_TLS, EMAIL_USE_SSL = MAIL_SERVER.scheme == "smtp", MAIL_SERVER.scheme == "smtps"

# -- GreenServe ------------------------------------------------------------------------------------

GREENSERVE_PLANE = ENV.plane
DEMO = ENV.demo
DEMO_DAYS = ENV.demo_days if ENV.demo else 0
DEMO_SPEEDUP = ENV.demo_speedup if ENV.demo else 1.0
# Periods of the loops in seconds, and what holds for all services; the rest is for their policies to say
# (core.policy.presets). The demo runs the slow ones faster, and says so.
GREENSERVE_LOOPS: dict[str, dict[str, Any]] = {
    "carbon": {"period_s": 1800.0 / DEMO_SPEEDUP, "steps": 6},
    "scale": {"period_s": 1800.0 / DEMO_SPEEDUP},
    "shard": {"period_s": 20.0 if DEMO else 300.0},
    "clock": {"period_s": 1.0, "lease_s": 10.0},
}
# Transition times (cold start, TP switch) of simulated nodes are divided by this.
GREENSERVE_TRANSITION_SPEEDUP = DEMO_SPEEDUP
GREENSERVE_CARBON_REFRESH_S = 5.0 if DEMO else 300.0  # of a feed that does not say otherwise
GREENSERVE_CARBON_TICK_S = min(60.0, GREENSERVE_CARBON_REFRESH_S)  # so often beat looks which feeds are due
GREENSERVE_CARBON_PROVIDERS = {
    "electricity_maps": "telemetry.providers.electricity_maps.ElectricityMapsProvider",
    "watttime": "telemetry.providers.watttime.WattTimeProvider",
    "gb_carbon_intensity": "telemetry.providers.gb_carbon_intensity.GbCarbonIntensityProvider",
    "pjm": "telemetry.providers.pjm.PjmProvider",
    "entsoe": "telemetry.providers.entsoe.EntsoeProvider",
    "eia": "telemetry.providers.eia.EiaProvider",
    "static_csv": "telemetry.providers.static_csv.StaticCsvProvider",
}
GREENSERVE_WEATHER_REFRESH_S = 3_600.0  # of a weather feed that does not say otherwise
GREENSERVE_WEATHER_TICK_S = 300.0  # so often beat looks which weather feeds are due
GREENSERVE_WEATHER_PROVIDERS = {
    "open_meteo": "telemetry.weather.open_meteo.OpenMeteoProvider",
    "weather_csv": "telemetry.weather.weather_csv.WeatherCsvProvider",
}
GREENSERVE_FEEDS_DIR = ENV.feeds_dir or ENV.var_dir / "feeds"  # the only files that feeds read
GREENSERVE_CARBON_HOSTS = ENV.carbon_hosts
GREENSERVE_WORKER_HOSTS = ENV.worker_hosts
GREENSERVE_CARBON_SECRETS = ENV.carbon_secrets  # each shows itself as ***
GREENSERVE_FORECAST_SCORE_S = 600.0 if DEMO else 6 * 3600.0
GREENSERVE_FORECAST_RETENTION_DAYS = 90  # forecasts of carbon and prices; what was measured is kept
GREENSERVE_CLOCK_DECISION_SINK = "scheduler.control.clock_decisions.store"
GREENSERVE_SAMPLE_RETENTION_DAYS = 14  # a batch that comes later than that is refused
GREENSERVE_MINUTE_RETENTION_DAYS = 62  # roll-ups to minutes; hours and days are kept
# A window of the ledger is settled when the longest request that ran in it has ended and its record is in; in the demo
# when most have: what comes later restates it.
GREENSERVE_SETTLE_AFTER_S = 120.0 if DEMO else 960.0
GREENSERVE_RESTATE_DAYS = 35  # how far back revised points and tariffs are looked for; below the minutes' retention
# Batches (scheduler.batches). How far ahead they look for clean time, and so how far forecasts are kept; each plan
# holds for an epoch. Their lines go through the gateway, so many at a time at most.
GREENSERVE_GATEWAY_URL = env.local_url(ENV.gateway_host, ENV.gateway_port)
GREENSERVE_BATCHES: dict[str, Any] = {
    "tick_s": 5.0,
    "epoch_s": 10.0 if DEMO else 60.0,
    "run_s": 600.0,
    "step_s": 300.0 / DEMO_SPEEDUP,
    "horizon_s": 86_400.0 / DEMO_SPEEDUP,
    "caution": 2.0,
    "reserve_s": 60.0,
    "learn_s": 5.0,
    "most_in_flight": 64.0,
    "attempts": 5,
    "file_bytes": 200 << 20,
    "tenant_bytes": 10 << 30,
    "lines": 50_000,
    "open_batches": 100,
}
# Alerts (telemetry.alerts). `rules` sets numbers of rules otherwise, by name: {"node_silent": {"threshold": 60}}.
GREENSERVE_ALERTS: dict[str, Any] = {
    "period_s": 15.0,
    "rules": {},
    "sources": (
        "telemetry.alerts.sources.SLO_BURN",
        "telemetry.alerts.sources.FEEDS",
        "telemetry.alerts.sources.NODES",
        "telemetry.alerts.sources.LEDGER",
        "telemetry.alerts.sources.POWER",
        "telemetry.alerts.sources.QUEUES",
        "telemetry.alerts.sources.CRASHES",
        "telemetry.alerts.engine_drift.ENGINE_DRIFT",
        "telemetry.alerts.budgets.BUDGETS",
        "telemetry.alerts.servers.SERVERS",
        "telemetry.alerts.upkeep_sources.DEAD_ROWS",
        "telemetry.alerts.upkeep_sources.STALLS",
        "telemetry.alerts.upkeep_sources.CLOCK",
        "telemetry.alerts.disks.RECORDS",
        "telemetry.alerts.disks.STREAM_ROOM",
        "telemetry.alerts.disks.FOLDERS",
        "telemetry.alerts.disks.REPORT_FILES",
        "scheduler.alert_sources.EPOCHS",
    ),
    "emails": ENV.alert_emails,
    "webhook_url": ENV.alert_webhook_url,
    "webhook_secret": ENV.alert_webhook_secret,
    "webhook_private": ENV.alert_webhook_private,
    "webhook_hosts": ENV.webhook_hosts,
}
GREENSERVE_METRICS_TOKEN = ENV.metrics_token
GREENSERVE_OTLP_URL = ENV.otlp_url  # of an OpenTelemetry collector; None: no traces
# Reports (telemetry.reports): who issues them, and where their files are kept.
GREENSERVE_ORGANISATION = ENV.organisation
GREENSERVE_REPORTS_DIR = ENV.var_dir / "reports"
# Folders whose disks alerts watch; a database of one's own is on a disk of its own.
GREENSERVE_FOLDERS = {
    "data": ENV.var_dir,
    "log": ENV.var_dir / "log",
    "database": None if ENV.database_url else server_folders.folders_of(ENV.var_dir).postgres_home,
}
GREENSERVE_LAB_DIR = ENV.var_dir / "lab"  # figures of the laboratory's runs, as `greenserve lab` keeps them
