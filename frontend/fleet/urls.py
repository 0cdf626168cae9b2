from django.urls import path

from . import engine_profiles, feeds, gpu_types, jobs, joining, model_cards, nodes, pools, services, sites

urlpatterns = [
    path("sites/", sites.sites, name="sites"),
    path("sites/<slug:name>/", sites.site, name="site"),
    path("sites/<slug:name>/figures.json", sites.site_figures, name="site-figures"),
    path("pools/", pools.pools, name="pools-page"),
    path("pools/<int:pool_id>/", pools.pool, name="pool"),
    path("pools/<int:pool_id>/figures.json", pools.pool_figures, name="pool-figures"),
    path("nodes/", nodes.nodes, name="nodes"),
    path("nodes/<slug:name>/", nodes.node, name="node"),
    path("nodes/<slug:name>/gpus/", nodes.node_gpus, name="node-gpus"),
    path("nodes/<slug:name>/join-token/", joining.new_token, name="node-join-token"),
    path("nodes/<slug:name>/revoke/", joining.revoke, name="node-revoke"),
    path("nodes/<slug:name>/figures.json", nodes.node_figures, name="node-figures"),
    path("gpu-types/", gpu_types.gpu_types, name="gpu-types"),
    path("gpu-types/<str:name>/", gpu_types.gpu_type, name="gpu-type"),
    path("engine-profiles/", engine_profiles.engine_profiles, name="engine-profiles"),
    path("engine-profiles/import/", engine_profiles.bring_in, name="engine-profile-import"),
    path("engine-profiles/<int:profile_id>/", engine_profiles.engine_profile, name="engine-profile"),
    path("engine-profiles/<int:profile_id>/csv/", engine_profiles.csv, name="engine-profile-csv"),
    path("engine-profiles/<int:profile_id>/publish/", engine_profiles.publish, name="engine-profile-publish"),
    path("engine-profiles/<int:profile_id>/withdraw/", engine_profiles.withdraw, name="engine-profile-withdraw"),
    path("models/", model_cards.models, name="models"),
    path("models/<int:model_id>/", model_cards.model, name="model"),
    path("models/<int:model_id>/figures.json", model_cards.model_figures, name="model-figures"),
    # A service may be named as models are on Hugging Face, with a slash
    path("services/", services.services, name="services"),
    path("services/<path:name>/figures.json", services.service_figures, name="service-figures"),
    path("services/<path:name>/", services.service, name="service"),
    path("feeds/", feeds.feeds, name="feeds"),
    path("feeds/<int:feed_id>/", feeds.feed, name="feed"),
    path("feeds/<int:feed_id>/figures.json", feeds.feed_figures, name="feed-figures"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<uuid:uid>/", jobs.job, name="job"),
    path("jobs/<uuid:uid>/cancel/", jobs.cancel, name="job-cancel"),
]
