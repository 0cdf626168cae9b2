from django.urls import path

from . import experiment_pages, pages, views

urlpatterns = [
    path("", views.studies_page, name="whatif"),
    path("new/", views.new_study, name="whatif-new"),
    path("experiments/", experiment_pages.experiments_page, name="whatif-experiments"),
    path("experiments/<slug:name>/", experiment_pages.new_experiment, name="whatif-experiment"),
    path("<int:study_id>/", pages.study, name="whatif-study"),
    path("<int:study_id>/figures.json", pages.study_figures, name="whatif-figures"),
    path("<int:study_id>/comparison.<slug:kind>", pages.comparison, name="whatif-comparison"),
    path("<int:study_id>/files/<str:name>", pages.study_file, name="whatif-file"),
    path("<int:study_id>/cancel/", views.cancel_study, name="whatif-cancel"),
    path("<int:study_id>/runs/<int:index>/", pages.run, name="whatif-run"),
    path("<int:study_id>/runs/<int:index>/figures.json", pages.run_figures, name="whatif-run-figures"),
    path("<int:study_id>/runs/<int:index>/scenario.yaml", pages.run_scenario, name="whatif-run-scenario"),
    path("<int:study_id>/runs/<int:index>/apply/", views.apply_run, name="whatif-apply"),
]
