from django.urls import path

from . import views

urlpatterns = [
    path("", views.trials_page, name="trials"),
    path("new/", views.new_trial, name="trial-new"),
    path("<int:trial_id>/", views.trial, name="trial"),
    path("<int:trial_id>.<str:kind>", views.trial_file, name="trial-file"),
    path("<int:trial_id>/baseline/", views.model_baseline, name="trial-baseline"),
    path("<int:trial_id>/cancel/", views.cancel_trial, name="trial-cancel"),
]
