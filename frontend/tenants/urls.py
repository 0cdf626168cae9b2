from django.urls import path

from . import pages

urlpatterns = [
    path("tenants/", pages.tenants, name="tenants"),
    path("tenants/this-month/", pages.this_month, name="tenants-this-month"),
    path("tenants/<slug:name>/", pages.tenant, name="tenant"),
    path("tenants/<slug:name>/bill/", pages.tenant_bill, name="tenant-bill"),
    path("tenants/<slug:name>/bill/make/", pages.make_bill, name="tenant-bill-make"),
    path("tenants/<slug:name>/figures.json", pages.tenant_figures, name="tenant-figures"),
]
