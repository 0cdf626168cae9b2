from django.urls import path

from . import account, audit_page, people_pages, sign_in

urlpatterns = [
    path("sign-in/", sign_in.SignInView.as_view(), name="login"),
    path("sign-in/", sign_in.SignInView.as_view(), name="account_login"),  # as allauth calls it
    path("sign-in/code/", sign_in.CodeView.as_view(), name="mfa_authenticate"),
    path("sign-in/<slug:provider_id>/start/", sign_in.oidc_start, name="openid_connect_login"),
    path("sign-in/<slug:provider_id>/callback/", sign_in.oidc_callback, name="openid_connect_callback"),
    path("sign-out/", sign_in.SignOutView.as_view(), name="logout"),
    path("account/", account.account, name="account"),
    path("account/password/", account.password, name="account-password"),
    path("account/two-step/", account.two_step, name="account-two-step"),
    path("account/two-step/off/", account.two_step_off, name="account-two-step-off"),
    path("account/two-step/codes/", account.recovery_codes, name="account-codes"),
    path("account/tokens/", account.new_token, name="account-tokens"),
    path("account/tokens/<int:token_id>/revoke/", account.revoke_token, name="account-token-revoke"),
    path("people/", people_pages.people_list, name="people"),
    path("people/<int:user_id>/", people_pages.person, name="person"),
    path("people/<int:user_id>/active/", people_pages.person_active, name="person-active"),
    path("people/<int:user_id>/password/", people_pages.person_password, name="person-password"),
    path("people/<int:user_id>/two-step/off/", people_pages.person_two_step_off, name="person-two-step-off"),
    path("keys/", people_pages.keys, name="keys"),
    path("keys/tenants/", people_pages.tenant_names, name="key-tenants"),
    path("keys/<int:key_id>/revoke/", people_pages.key_revoke, name="key-revoke"),
    path("keys/tokens/<int:token_id>/revoke/", people_pages.token_revoke, name="token-revoke"),
    path("audit/", audit_page.audit_trail, name="audit"),
    path("audit.csv", audit_page.audit_csv, name="audit-csv"),
]
