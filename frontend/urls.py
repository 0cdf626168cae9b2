from django.urls import include, path

from . import reports, views
from .alerts import views as alert_views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("overview/summary/", views.summary, name="summary"),
    path("overview/pools/", views.pools, name="pools"),
    path("overview/decisions/", views.recent_decisions, name="recent-decisions"),
    path("overview/figures.json", views.figures, name="figures"),
    path("overview/<slug:chart>.csv", views.chart_csv, name="chart-csv"),
    path("decisions/", views.decision_list, name="decisions"),
    path("decisions/<int:decision_id>/", views.decision, name="decision"),
    path("decisions/<int:decision_id>/figures.json", views.decision_figures, name="decision-figures"),
    path("reports/", reports.reports, name="reports"),
    path("reports/<int:report_id>/", reports.report, name="report"),
    path("reports/<int:report_id>/files/<slug:kind>/", reports.report_file, name="report-file"),
    path("reports/<int:report_id>/figures/", reports.report_figures, name="report-figures"),
    path("reports/<int:report_id>/pivot/", reports.report_pivot, name="report-pivot"),
    path("reports/<int:report_id>/sign/", reports.report_sign, name="report-sign"),
    path("reports/<int:report_id>/cancel/", reports.report_cancel, name="report-cancel"),
    path("alerts/", alert_views.alerts, name="alerts"),
    path("alerts/<int:alert_id>/acknowledge/", alert_views.acknowledge, name="acknowledge-alert"),
    path("alerts/silences/", alert_views.silence, name="silence-alerts"),
    path("alerts/silences/<int:silence_id>/end/", alert_views.end_silence, name="end-silence"),
    path("health/", views.health, name="health"),
    path("health.json", views.health_json, name="health-json"),
    path("healthz", views.healthz, name="healthz"),
    path("preferences/time-zone/", views.time_zone, name="time-zone"),
    path("", include("frontend.people.urls")),
    path("", include("frontend.configure.urls")),
    path("", include("frontend.fleet.urls")),
    path("", include("frontend.tenants.urls")),
    path("what-if/", include("frontend.whatif.urls")),
    path("trials/", include("frontend.trials.urls")),
]
