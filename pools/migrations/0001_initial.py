import uuid

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from pools.sql import append_only_audit


class Migration(migrations.Migration):
    initial = True

    # Databases from before 0.1.0 are taken as they are where they had all of these; can go with 0.2.
    replaces = [
        ("pools", "0001_first_light"),
        ("pools", "0002_policy"),
        ("pools", "0003_tokenizers"),
        ("pools", "0004_people"),
        ("pools", "0005_join_tokens"),
        ("pools", "0006_engine_launch"),
        ("pools", "0007_registered_warm_beside"),
        ("pools", "0008_site_pue_at_most"),
    ]

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField()),
            ],
            options={
                "ordering": ["site", "name"],
            },
        ),
        migrations.CreateModel(
            name="Partition",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(unique=True)),
                ("source", models.CharField(blank=True, max_length=200)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="Pool",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu_budget", models.JSONField(blank=True, default=dict)),
                ("workers", models.JSONField(blank=True, default=dict)),
                (
                    "warm",
                    models.PositiveSmallIntegerField(
                        default=0,
                        help_text="Engines kept warm beside those that are wanted: asleep, or loaded, without requests.",
                    ),
                ),
            ],
            options={
                "ordering": ["service", "request_class__rank", "site"],
            },
        ),
        migrations.CreateModel(
            name="Tenant",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(unique=True)),
                ("label", models.CharField(blank=True, max_length=100)),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(auto_now_add=True)),
                (
                    "user_id",
                    models.BigIntegerField(blank=True, help_text="Empty: the system, or nobody known.", null=True),
                ),
                ("who", models.CharField(blank=True, help_text="User name at that moment.", max_length=150)),
                ("key", models.CharField(blank=True, help_text="Label and prefix of the token used.", max_length=120)),
                ("channel", models.CharField(max_length=16)),
                ("action", models.CharField(max_length=40)),
                ("kind", models.CharField(help_text="What was changed, for example site.", max_length=60)),
                ("object_key", models.CharField(max_length=100)),
                ("label", models.CharField(max_length=200)),
                ("before", models.JSONField(blank=True, null=True)),
                ("after", models.JSONField(blank=True, null=True)),
                ("request_id", models.CharField(blank=True, max_length=64)),
                ("address", models.GenericIPAddressField(blank=True, null=True)),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ["-at", "-id"],
                "indexes": [
                    models.Index(fields=["-at", "-id"], name="auditentry_newest"),
                    models.Index(fields=["kind", "object_key", "-id"], name="auditentry_object"),
                    models.Index(fields=["who", "-id"], name="auditentry_who"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "Viewer"),
                            ("operator", "Operator"),
                            ("finance", "Finance"),
                            ("administrator", "Administrator"),
                        ],
                        default="viewer",
                        max_length=16,
                    ),
                ),
                (
                    "must_change_password",
                    models.BooleanField(default=False, help_text="The password was given by somebody else."),
                ),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="membership",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["user__username"],
            },
        ),
        migrations.CreateModel(
            name="ModelCard",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                ("hugging_face_id", models.CharField(blank=True, max_length=200)),
                ("max_model_len", models.PositiveIntegerField(help_text="Longest prompt plus output, in tokens.")),
                (
                    "engine",
                    models.CharField(
                        default="vllm-v1", help_text="Engine parameters of the engine model.", max_length=40
                    ),
                ),
                (
                    "tokenizer",
                    models.CharField(
                        blank=True,
                        help_text="The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.",
                        max_length=300,
                    ),
                ),
                (
                    "weights",
                    models.CharField(
                        blank=True,
                        help_text="Folder on the nodes with the weights; empty: the Hugging Face id.",
                        max_length=300,
                    ),
                ),
                (
                    "dtype",
                    models.CharField(
                        choices=[
                            ("auto", "auto"),
                            ("bfloat16", "bfloat16"),
                            ("float16", "float16"),
                            ("float32", "float32"),
                        ],
                        default="auto",
                        help_text="Number format that engines compute in; auto: that of the weights.",
                        max_length=10,
                    ),
                ),
                (
                    "engine_arguments",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text='vLLM\'s arguments, word by word: ["--kv-cache-dtype", "fp8"].',
                    ),
                ),
                (
                    "engine_environment",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text='Variables of engines: {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}.',
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("max_model_len__gt", 0)), name="model_card_max_model_len_positive"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Node",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(unique=True)),
                ("simulated", models.BooleanField(default=False)),
                ("schedulable", models.BooleanField(default=True, help_text="Off: epochs place nothing new here.")),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="nodes", to="pools.cluster"
                    ),
                ),
            ],
            options={
                "ordering": ["cluster", "name"],
            },
        ),
        migrations.CreateModel(
            name="JoinToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("prefix", models.CharField(help_text="First characters, to tell tokens apart.", max_length=12)),
                ("token_hash", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField()),
                ("used_at", models.DateTimeField(blank=True, null=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="join_tokens", to="pools.cluster"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="join_tokens",
                        to="pools.node",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
            },
        ),
        migrations.CreateModel(
            name="Gpu",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uuid", models.CharField(max_length=64, unique=True)),
                ("index", models.PositiveSmallIntegerField()),
                (
                    "gpu_type",
                    models.CharField(help_text="Name in the engine model, for example A100-80GB.", max_length=40),
                ),
                ("memory_gb", models.FloatField()),
                ("min_mhz", models.FloatField()),
                ("max_mhz", models.FloatField()),
                ("tdp_w", models.FloatField()),
                (
                    "node",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="gpus", to="pools.node"
                    ),
                ),
            ],
            options={
                "ordering": ["node", "index"],
            },
        ),
        migrations.CreateModel(
            name="Instance",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("gpu_type", models.CharField(max_length=40)),
                ("tp", models.PositiveSmallIntegerField()),
                (
                    "desired",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("sleeping", "Sleeping"),
                            ("draining", "Draining"),
                            ("stopped", "Stopped"),
                        ],
                        default="running",
                        max_length=10,
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("starting", "Starting"),
                            ("ready", "Ready"),
                            ("sleeping", "Sleeping"),
                            ("draining", "Draining"),
                            ("failed", "Failed"),
                            ("stopped", "Stopped"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("detail", models.CharField(blank=True, max_length=300)),
                ("url", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ready_at", models.DateTimeField(blank=True, null=True)),
                ("stopped_at", models.DateTimeField(blank=True, null=True)),
                (
                    "decision_id",
                    models.BigIntegerField(blank=True, help_text="The decision that started it.", null=True),
                ),
                (
                    "replaces",
                    models.JSONField(
                        blank=True,
                        default=list,
                        help_text="Shadow start: uids of instances that serve until this one is ready.",
                    ),
                ),
                (
                    "model_card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="instances", to="pools.modelcard"
                    ),
                ),
                (
                    "node",
                    models.ForeignKey(
                        help_text="Null: it registered itself.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="instances",
                        to="pools.node",
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="instances", to="pools.pool"
                    ),
                ),
            ],
            options={
                "ordering": ["pool", "created_at"],
            },
        ),
        migrations.CreateModel(
            name="RequestClass",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=20)),
                ("rank", models.PositiveSmallIntegerField(help_text="Order by size; spilling goes upwards.")),
                ("input_min", models.PositiveIntegerField(default=0)),
                ("input_max", models.PositiveIntegerField(blank=True, null=True)),
                ("output_min", models.PositiveIntegerField(default=0)),
                ("output_max", models.PositiveIntegerField(blank=True, null=True)),
                ("ttft_threshold_s", models.FloatField(blank=True, null=True)),
                ("tpot_threshold_s", models.FloatField(blank=True, null=True)),
                ("e2e_threshold_s", models.FloatField(blank=True, null=True)),
                (
                    "partition",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="classes", to="pools.partition"
                    ),
                ),
            ],
            options={
                "ordering": ["partition", "rank"],
            },
        ),
        migrations.CreateModel(
            name="Profile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu_type", models.CharField(max_length=40)),
                ("tp", models.PositiveSmallIntegerField()),
                ("max_rps", models.FloatField()),
                ("power_w", models.FloatField(help_text="Whole instance, at max_rps.")),
                ("e2e_s", models.FloatField(blank=True, null=True)),
                ("tpot_s", models.FloatField(blank=True, null=True)),
                ("ttft_s", models.FloatField(blank=True, null=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("measured", "Measured"), ("published", "Published"), ("modelled", "Modelled")],
                        max_length=10,
                    ),
                ),
                ("source", models.CharField(max_length=300)),
                ("note", models.CharField(blank=True, max_length=300)),
                (
                    "model_card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="profiles", to="pools.modelcard"
                    ),
                ),
                (
                    "request_class",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="profiles", to="pools.requestclass"
                    ),
                ),
            ],
            options={
                "ordering": ["model_card", "request_class", "gpu_type", "tp"],
            },
        ),
        migrations.AddField(
            model_name="pool",
            name="request_class",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="pools", to="pools.requestclass"
            ),
        ),
        migrations.CreateModel(
            name="Service",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="The `model` that clients send.", max_length=100, unique=True)),
                ("description", models.CharField(blank=True, max_length=300)),
                (
                    "expected_rps",
                    models.FloatField(
                        blank=True,
                        help_text="Load to plan for until five minutes have been seen, in requests/s.",
                        null=True,
                    ),
                ),
                (
                    "expected_prompt_tokens",
                    models.PositiveIntegerField(blank=True, help_text="Mean length of prompts.", null=True),
                ),
                (
                    "expected_output_tokens",
                    models.PositiveIntegerField(blank=True, help_text="Mean length of answers.", null=True),
                ),
                (
                    "policy",
                    models.CharField(
                        choices=[
                            ("greenserve", "greenserve"),
                            ("right_size", "right_size"),
                            ("freesh", "freesh"),
                            ("freesh_baseline", "freesh_baseline"),
                            ("min_energy", "min_energy"),
                            ("dynamollm", "dynamollm"),
                            ("single_pool", "single_pool"),
                            ("multi_pool", "multi_pool"),
                            ("scale_inst", "scale_inst"),
                            ("scale_shard", "scale_shard"),
                            ("scale_freq", "scale_freq"),
                            ("throttllem", "throttllem"),
                            ("triton", "triton"),
                            ("retail", "retail"),
                            ("muserve", "muserve"),
                            ("alpaserve", "alpaserve"),
                            ("alpaserve_sched", "alpaserve_sched"),
                            ("alpaserve_scaling", "alpaserve_scaling"),
                            ("dynaserve", "dynaserve"),
                            ("pd_coloc", "pd_coloc"),
                            ("pd_disagg", "pd_disagg"),
                        ],
                        default="greenserve",
                        help_text="A preset of scheduler.core.presets.",
                        max_length=20,
                    ),
                ),
                (
                    "knobs",
                    models.JSONField(
                        blank=True, default=dict, help_text="Knobs that are set otherwise than in the preset."
                    ),
                ),
                (
                    "model_card",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="services", to="pools.modelcard"
                    ),
                ),
                (
                    "partition",
                    models.ForeignKey(
                        help_text="In force; the carbon epoch's.",
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="active_services",
                        to="pools.partition",
                    ),
                ),
                (
                    "partitions",
                    models.ManyToManyField(
                        help_text="Those the carbon epoch may choose from.",
                        related_name="services",
                        to="pools.partition",
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.AddField(
            model_name="pool",
            name="service",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="pools", to="pools.service"
            ),
        ),
        migrations.CreateModel(
            name="Site",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(unique=True)),
                ("label", models.CharField(help_text="Name shown to people, for example Ashburn.", max_length=100)),
                (
                    "grid_zone",
                    models.CharField(
                        help_text="The carbon feeds' name of the grid zone, for example DE.", max_length=40
                    ),
                ),
                (
                    "time_zone",
                    models.CharField(default="UTC", help_text="IANA name, for example Europe/Berlin.", max_length=60),
                ),
                (
                    "pue",
                    models.FloatField(
                        default=1.54,
                        help_text="Power usage effectiveness; the default is Uptime Institute's mean of 2025.",
                        validators=[
                            django.core.validators.MinValueValidator(1.0),
                            django.core.validators.MaxValueValidator(10.0),
                        ],
                    ),
                ),
                ("currency", models.CharField(default="USD", max_length=3)),
                (
                    "power_cap_w",
                    models.FloatField(
                        blank=True, help_text="Cap on the site's power in watts; empty: none.", null=True
                    ),
                ),
                ("rank", models.PositiveSmallIntegerField(default=0, help_text="Order on pages and of colours.")),
            ],
            options={
                "ordering": ["rank", "name"],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(("pue__gte", 1.0)), name="site_pue_at_least_1"),
                    models.CheckConstraint(
                        condition=models.Q(("power_cap_w__isnull", True), ("power_cap_w__gt", 0), _connector="OR"),
                        name="site_power_cap_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("currency__regex", "^[A-Z]{3}$")), name="site_currency_iso4217"
                    ),
                ],
            },
        ),
        migrations.AddField(
            model_name="pool",
            name="site",
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="pools", to="pools.site"),
        ),
        migrations.CreateModel(
            name="MembershipSite",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("membership", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="pools.membership")),
                (
                    "site",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="pools.site"),
                ),
            ],
        ),
        migrations.AddField(
            model_name="membership",
            name="sites",
            field=models.ManyToManyField(
                blank=True,
                help_text="None chosen: all sites.",
                related_name="+",
                through="pools.MembershipSite",
                to="pools.site",
            ),
        ),
        migrations.AddField(
            model_name="cluster",
            name="site",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="clusters", to="pools.site"
            ),
        ),
        migrations.CreateModel(
            name="Slo",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E")], max_length=8)),
                ("objective_s", models.FloatField()),
                ("percentile", models.FloatField(default=99.0)),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="slos", to="pools.service"
                    ),
                ),
            ],
            options={
                "ordering": ["service", "kind"],
            },
        ),
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("label", models.CharField(blank=True, max_length=100)),
                ("prefix", models.CharField(help_text="First characters, to tell keys apart.", max_length=12)),
                ("key_hash", models.CharField(max_length=64, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="api_keys", to="pools.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["tenant", "created_at"],
            },
        ),
        migrations.CreateModel(
            name="AccessToken",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("label", models.CharField(max_length=100)),
                ("prefix", models.CharField(help_text="First characters, to tell tokens apart.", max_length=12)),
                ("token_hash", models.CharField(max_length=64, unique=True)),
                (
                    "rights",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=16),
                        help_text="At most these, and no more than the person has.",
                        size=None,
                    ),
                ),
                (
                    "site_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(),
                        blank=True,
                        default=list,
                        help_text="Empty: all the person's.",
                        size=None,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("last_used_at", models.DateTimeField(blank=True, help_text="To the minute.", null=True)),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="access_tokens",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["user", "-created_at"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("rights", []), _negated=True), name="accesstoken_has_rights"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="InstanceGpu",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("released_at", models.DateTimeField(blank=True, null=True)),
                (
                    "beside",
                    models.BooleanField(default=False, help_text="Until the one that it replaces has gone from there."),
                ),
                (
                    "gpu",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="holds", to="pools.gpu"
                    ),
                ),
                (
                    "instance",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="gpu_holds", to="pools.instance"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("released_at__isnull", True)),
                        fields=("gpu", "beside"),
                        name="gpu_held_once",
                    ),
                    models.UniqueConstraint(fields=("instance", "gpu"), name="instance_gpu_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("kind", models.CharField(max_length=40)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("queued", "Queued"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="queued",
                        max_length=10,
                    ),
                ),
                ("progress", models.FloatField(default=0.0, help_text="Share done, 0 to 1.")),
                ("parameters", models.JSONField(blank=True, default=dict)),
                ("result", models.JSONField(blank=True, null=True)),
                ("log", models.TextField(blank=True)),
                ("error", models.TextField(blank=True)),
                ("cancel_requested", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("progress__gte", 0), ("progress__lte", 1)), name="job_progress_range"
                    )
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="gpu",
            constraint=models.UniqueConstraint(fields=("node", "index"), name="gpu_index_per_node"),
        ),
        migrations.AddConstraint(
            model_name="gpu",
            constraint=models.CheckConstraint(
                condition=models.Q(("min_mhz__gt", 0), ("max_mhz__gte", models.F("min_mhz"))), name="gpu_clock_range"
            ),
        ),
        migrations.AddConstraint(
            model_name="gpu",
            constraint=models.CheckConstraint(
                condition=models.Q(("memory_gb__gt", 0), ("tdp_w__gt", 0)), name="gpu_positive"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("state", "stopped"), _negated=True), fields=["pool"], name="instance_live_by_pool"
            ),
        ),
        migrations.AddIndex(
            model_name="instance",
            index=models.Index(
                condition=models.Q(("state", "stopped"), _negated=True), fields=["node"], name="instance_live_by_node"
            ),
        ),
        migrations.AddConstraint(
            model_name="instance",
            constraint=models.CheckConstraint(condition=models.Q(("tp__gt", 0)), name="instance_tp_positive"),
        ),
        migrations.AddConstraint(
            model_name="requestclass",
            constraint=models.UniqueConstraint(fields=("partition", "name"), name="request_class_name_per_partition"),
        ),
        migrations.AddConstraint(
            model_name="requestclass",
            constraint=models.UniqueConstraint(fields=("partition", "rank"), name="request_class_rank_per_partition"),
        ),
        migrations.AddConstraint(
            model_name="requestclass",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("input_max__isnull", True), ("input_max__gt", models.F("input_min")), _connector="OR"
                ),
                name="request_class_input_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="requestclass",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("output_max__isnull", True), ("output_max__gt", models.F("output_min")), _connector="OR"
                ),
                name="request_class_output_range",
            ),
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.UniqueConstraint(
                fields=("model_card", "request_class", "gpu_type", "tp", "source"), name="profile_once_per_source"
            ),
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.CheckConstraint(
                condition=models.Q(("tp__gt", 0), ("max_rps__gte", 0), ("power_w__gt", 0)), name="profile_positive"
            ),
        ),
        migrations.AddConstraint(
            model_name="service",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("expected_rps__isnull", True),
                    models.Q(
                        ("expected_rps__gt", 0),
                        ("expected_prompt_tokens__gt", 0),
                        ("expected_prompt_tokens__isnull", False),
                        ("expected_output_tokens__gt", 0),
                        ("expected_output_tokens__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="service_expected_load_whole",
            ),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.UniqueConstraint(fields=("service", "site", "request_class"), name="pool_once"),
        ),
        migrations.AddConstraint(
            model_name="membershipsite",
            constraint=models.UniqueConstraint(fields=("membership", "site"), name="membershipsite_unique"),
        ),
        migrations.AddConstraint(
            model_name="cluster",
            constraint=models.UniqueConstraint(fields=("site", "name"), name="cluster_name_per_site"),
        ),
        migrations.AddConstraint(
            model_name="slo",
            constraint=models.UniqueConstraint(fields=("service", "kind"), name="slo_kind_per_service"),
        ),
        migrations.AddConstraint(
            model_name="slo",
            constraint=models.CheckConstraint(
                condition=models.Q(("objective_s__gt", 0)), name="slo_objective_positive"
            ),
        ),
        migrations.AddConstraint(
            model_name="slo",
            constraint=models.CheckConstraint(
                condition=models.Q(("percentile__gt", 0), ("percentile__lte", 100)), name="slo_percentile_range"
            ),
        ),
        migrations.RunSQL(append_only_audit.CREATE, append_only_audit.DROP),
    ]
