from django.db import migrations

from pools.sql import append_only_audit


class Migration(migrations.Migration):
    dependencies = [("pools", "0015_a_person_may_have_no_role")]

    operations = [migrations.RunSQL(append_only_audit.REFUSE_TRUNCATE, append_only_audit.ALLOW_TRUNCATE)]
