import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    # Databases from before 0.1.0 are taken as they are where they had all of these; can go with 0.2.
    replaces = [
        ("scheduler", "0001_first_light"),
        ("scheduler", "0002_batches"),
        ("scheduler", "0003_infeasible_words"),
        ("scheduler", "0004_recordings"),
        ("scheduler", "0005_control"),
        ("scheduler", "0006_studies"),
        ("scheduler", "0007_outside"),
    ]

    dependencies = [
        ("pools", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Batch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("endpoint", models.CharField(max_length=60)),
                ("completion_window", models.CharField(max_length=10)),
                ("metadata", models.JSONField(null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("validating", "Validating"),
                            ("failed", "Failed"),
                            ("in_progress", "In Progress"),
                            ("finalizing", "Finalizing"),
                            ("completed", "Completed"),
                            ("expired", "Expired"),
                            ("cancelling", "Cancelling"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="validating",
                        max_length=12,
                    ),
                ),
                ("errors", models.JSONField(default=list)),
                ("input_file_uid", models.UUIDField()),
                ("output_file_uid", models.UUIDField(null=True)),
                ("error_file_uid", models.UUIDField(null=True)),
                ("output_expires_s", models.PositiveIntegerField(null=True)),
                ("total", models.PositiveIntegerField(default=0)),
                ("completed", models.PositiveIntegerField(default=0)),
                ("failed", models.PositiveIntegerField(default=0)),
                ("prompt_tokens", models.BigIntegerField(default=0)),
                ("output_tokens", models.BigIntegerField(default=0)),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("in_progress_at", models.DateTimeField(null=True)),
                ("finalizing_at", models.DateTimeField(null=True)),
                ("completed_at", models.DateTimeField(null=True)),
                ("failed_at", models.DateTimeField(null=True)),
                ("expired_at", models.DateTimeField(null=True)),
                ("cancelling_at", models.DateTimeField(null=True)),
                ("cancelled_at", models.DateTimeField(null=True)),
                (
                    "key",
                    models.ForeignKey(
                        help_text="Whose requests its lines are.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="pools.apikey",
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        help_text="Known once it is validated.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="pools.service",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="batches", to="pools.tenant"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "batches",
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="BatchLine",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField(help_text="In the input file, from 1.")),
                ("custom_id", models.CharField(max_length=512)),
                ("body", models.TextField()),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("not_before", models.DateTimeField(null=True)),
                ("result", models.TextField(null=True)),
                ("ok", models.BooleanField(null=True)),
                (
                    "batch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="lines", to="scheduler.batch"
                    ),
                ),
            ],
            options={
                "ordering": ["batch", "number"],
            },
        ),
        migrations.CreateModel(
            name="ControllerState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=10)),
                ("version", models.BigIntegerField(default=0)),
                ("value", models.JSONField(default=dict)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="controller_states",
                        to="pools.service",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Epoch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("carbon", "Carbon"), ("scale", "Scale"), ("shard", "Shard")], max_length=10
                    ),
                ),
                ("index", models.BigIntegerField()),
                ("period_s", models.FloatField()),
                ("due_at", models.DateTimeField()),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("applied", "Applied"),
                            ("held", "held (no change)"),
                            ("infeasible", "infeasible (what can be done)"),
                            ("failed", "failed (last plan kept)"),
                            ("advised", "advised (not carried out)"),
                            ("waiting", "waiting (for approval)"),
                        ],
                        max_length=12,
                    ),
                ),
                ("solve_s", models.FloatField(blank=True, null=True)),
                ("error", models.TextField(blank=True)),
                (
                    "recording",
                    models.JSONField(
                        help_text="What its steps were told and answered: scheduler.live.recordings.", null=True
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="epochs", to="pools.service"
                    ),
                ),
            ],
            options={
                "ordering": ["-due_at"],
                "get_latest_by": "due_at",
            },
        ),
        migrations.CreateModel(
            name="Decision",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("carbon", "Carbon"),
                            ("scale", "Scale"),
                            ("shard", "Shard"),
                            ("clock", "Clock"),
                            ("deferral", "Deferral"),
                        ],
                        max_length=10,
                    ),
                ),
                ("at", models.DateTimeField()),
                ("instance_uid", models.UUIDField(null=True)),
                ("reason", models.CharField(help_text="scheduler.core.types.Reason", max_length=20)),
                ("summary", models.CharField(max_length=500)),
                ("inputs", models.JSONField(default=dict)),
                ("alternatives", models.JSONField(default=list)),
                ("commands", models.JSONField(default=list)),
                ("predicted", models.JSONField(default=dict)),
                ("realised", models.JSONField(help_text="Filled once its horizon has passed.", null=True)),
                (
                    "held",
                    models.PositiveIntegerField(
                        default=0, help_text="Equal decisions before this one (run-length encoding)."
                    ),
                ),
                (
                    "source_key",
                    models.CharField(
                        help_text="agent/boot/seq/n of a clock decision: ingested once.",
                        max_length=160,
                        null=True,
                        unique=True,
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="decisions",
                        to="pools.pool",
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="decisions",
                        to="pools.service",
                    ),
                ),
                (
                    "epoch",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="decisions",
                        to="scheduler.epoch",
                    ),
                ),
            ],
            options={
                "ordering": ["-at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="Approval",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("loop", models.CharField(max_length=10)),
                ("commands", models.JSONField(default=list)),
                ("state", models.JSONField(default=dict)),
                ("basis", models.CharField(max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "Pending"),
                            ("approved", "Approved"),
                            ("rejected", "Rejected"),
                            ("expired", "Expired"),
                            ("outdated", "out of date"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("note", models.CharField(blank=True, max_length=300)),
                (
                    "decided_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="approvals", to="pools.service"
                    ),
                ),
                (
                    "controller",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="approvals",
                        to="scheduler.controllerstate",
                    ),
                ),
                (
                    "epoch",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="approval", to="scheduler.epoch"
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="File",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "purpose",
                    models.CharField(choices=[("batch", "Batch"), ("batch_output", "Batch Output")], max_length=20),
                ),
                ("filename", models.CharField(max_length=255)),
                ("bytes", models.BigIntegerField()),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(null=True)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="files", to="pools.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.CreateModel(
            name="FileChunk",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("index", models.PositiveIntegerField()),
                ("data", models.BinaryField()),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="chunks", to="scheduler.file"
                    ),
                ),
            ],
            options={
                "ordering": ["file", "index"],
            },
        ),
        migrations.CreateModel(
            name="IdempotentAnswer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("actor", models.CharField(max_length=80)),
                ("key", models.CharField(max_length=255)),
                ("body_hash", models.CharField(max_length=64)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("headers", models.JSONField(default=dict)),
                ("body", models.JSONField(null=True)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="idempotent_answer_age")],
                "constraints": [models.UniqueConstraint(fields=("actor", "key"), name="idempotent_answer_once")],
            },
        ),
        migrations.CreateModel(
            name="LoopPause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reason", models.CharField(help_text="Why, for those who wonder later.", max_length=300)),
                ("created_at", models.DateTimeField()),
                (
                    "ended_at",
                    models.DateTimeField(blank=True, help_text="Ended by hand; empty: it was not.", null=True),
                ),
                (
                    "loop",
                    models.CharField(
                        choices=[("carbon", "Carbon"), ("scale", "Scale"), ("shard", "Shard"), ("clock", "Clock")],
                        max_length=10,
                    ),
                ),
                (
                    "expires_at",
                    models.DateTimeField(blank=True, help_text="Empty: until somebody resumes it.", null=True),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "ended_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="pauses", to="pools.service"
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Override",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("reason", models.CharField(help_text="Why, for those who wonder later.", max_length=300)),
                ("created_at", models.DateTimeField()),
                (
                    "ended_at",
                    models.DateTimeField(blank=True, help_text="Ended by hand; empty: it was not.", null=True),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("workers", "workers of a pool"),
                            ("clock", "clock"),
                            ("partition", "partition of a service"),
                            ("drain", "drain of a site"),
                        ],
                        max_length=10,
                    ),
                ),
                ("instance_uid", models.UUIDField(blank=True, null=True)),
                ("value", models.JSONField(blank=True, default=dict)),
                ("expires_at", models.DateTimeField()),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "decision",
                    models.ForeignKey(
                        blank=True,
                        help_text="That it undoes.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="undone_by",
                        to="scheduler.decision",
                    ),
                ),
                (
                    "ended_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "pool",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="overrides",
                        to="pools.pool",
                    ),
                ),
                (
                    "service",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="overrides",
                        to="pools.service",
                    ),
                ),
                (
                    "site",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="overrides",
                        to="pools.site",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="ServiceMode",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("act", "act: decisions are carried out"),
                            ("advise", "advise: decisions are made and shown, and not carried out"),
                            ("approve", "approve: decisions wait until a person approves them"),
                        ],
                        default="act",
                        max_length=8,
                    ),
                ),
                (
                    "approve_within_s",
                    models.FloatField(default=900.0, help_text="A decision that nobody approved by then lapses."),
                ),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "changed_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "service",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="mode", to="pools.service"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Study",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=120)),
                ("base", models.CharField(help_text="What the scenario was made from.", max_length=120)),
                ("scenario", models.JSONField()),
                (
                    "notes",
                    models.JSONField(default=list, help_text="What the scenario assumes or leaves out, in sentences."),
                ),
                ("currency", models.CharField(default="USD", help_text="Of all its prices.", max_length=3)),
                ("attempts", models.PositiveSmallIntegerField(default=0, help_text="How many workers took it up.")),
                ("heard_at", models.DateTimeField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
                    ),
                ),
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, related_name="study", to="pools.job"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "studies",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="StudyFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100)),
                ("data", models.BinaryField()),
                (
                    "study",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="files", to="scheduler.study"
                    ),
                ),
            ],
            options={
                "ordering": ["study", "name"],
            },
        ),
        migrations.CreateModel(
            name="StudyRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("index", models.PositiveSmallIntegerField()),
                ("label", models.CharField(max_length=200)),
                ("policy", models.CharField(max_length=40)),
                (
                    "knobs",
                    models.JSONField(blank=True, default=dict, help_text="Keys of the policy that are set otherwise."),
                ),
                (
                    "changes",
                    models.JSONField(blank=True, default=list, help_text="Fields set otherwise: key.key=value."),
                ),
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
                ("progress", models.FloatField(help_text="Share done; null: it is not known.", null=True)),
                ("simulated_s", models.FloatField(default=0.0)),
                ("figures", models.JSONField(null=True)),
                ("series", models.JSONField(null=True)),
                ("error", models.TextField(blank=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                (
                    "study",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="runs", to="scheduler.study"
                    ),
                ),
            ],
            options={
                "ordering": ["study", "index"],
            },
        ),
        migrations.CreateModel(
            name="WebhookSubscription",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=100, unique=True)),
                (
                    "url",
                    models.CharField(
                        help_text="https, and at a public address; part of it may be secret.", max_length=500
                    ),
                ),
                ("secret", models.CharField(max_length=100)),
                (
                    "events",
                    models.JSONField(default=list, help_text="Names of events: scheduler.live.webhooks.EVENTS."),
                ),
                ("enabled", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ["name"],
            },
        ),
        migrations.CreateModel(
            name="WebhookDelivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("event", models.CharField(max_length=40)),
                ("subject", models.CharField(max_length=80)),
                ("body", models.JSONField()),
                (
                    "state",
                    models.CharField(
                        choices=[("pending", "Pending"), ("sent", "Sent"), ("failed", "Failed")],
                        default="pending",
                        max_length=8,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("due_at", models.DateTimeField(help_text="When it is to be sent, or tried again.")),
                ("sent_at", models.DateTimeField(null=True)),
                ("error", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "subscription",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="scheduler.webhooksubscription",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "-id"],
            },
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(fields=["tenant", "-created_at", "-id"], name="scheduler_b_tenant__5ad8e5_idx"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(
                condition=models.Q(("status__in", ["validating", "in_progress", "finalizing", "cancelling"])),
                fields=["expires_at"],
                name="batch_unfinished",
            ),
        ),
        migrations.AddIndex(
            model_name="batchline",
            index=models.Index(
                condition=models.Q(("result__isnull", True)), fields=["batch", "number"], name="batch_line_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="batchline",
            constraint=models.UniqueConstraint(fields=("batch", "number"), name="batch_line_once"),
        ),
        migrations.AddConstraint(
            model_name="controllerstate",
            constraint=models.UniqueConstraint(fields=("kind", "service"), name="controller_state_once"),
        ),
        migrations.AddConstraint(
            model_name="epoch",
            constraint=models.UniqueConstraint(fields=("kind", "service", "period_s", "index"), name="epoch_runs_once"),
        ),
        migrations.AddConstraint(
            model_name="epoch",
            constraint=models.CheckConstraint(condition=models.Q(("period_s__gt", 0)), name="epoch_period_positive"),
        ),
        migrations.AddIndex(
            model_name="decision",
            index=models.Index(fields=["-at"], name="scheduler_d_at_ecef68_idx"),
        ),
        migrations.AddIndex(
            model_name="decision",
            index=models.Index(fields=["kind", "-at"], name="scheduler_d_kind_df9930_idx"),
        ),
        migrations.AddConstraint(
            model_name="approval",
            constraint=models.UniqueConstraint(
                condition=models.Q(("status", "pending")), fields=("service", "loop"), name="approval_pending_once"
            ),
        ),
        migrations.AddIndex(
            model_name="file",
            index=models.Index(fields=["tenant", "-created_at", "-id"], name="scheduler_f_tenant__b17da6_idx"),
        ),
        migrations.AddConstraint(
            model_name="filechunk",
            constraint=models.UniqueConstraint(fields=("file", "index"), name="file_chunk_once"),
        ),
        migrations.AddConstraint(
            model_name="looppause",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at__isnull", True)), fields=("service", "loop"), name="loop_paused_once"
            ),
        ),
        migrations.AddIndex(
            model_name="override",
            index=models.Index(
                condition=models.Q(("ended_at__isnull", True)), fields=["expires_at"], name="override_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="override",
            constraint=models.CheckConstraint(
                condition=models.Q(("expires_at__gt", models.F("created_at"))), name="override_ends"
            ),
        ),
        migrations.AddConstraint(
            model_name="override",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "drain"), ("service__isnull", True), ("site__isnull", False)),
                    models.Q(("kind", "partition"), ("service__isnull", False)),
                    models.Q(("kind__in", ["workers", "clock"]), ("pool__isnull", False), ("service__isnull", False)),
                    _connector="OR",
                ),
                name="override_of_something",
            ),
        ),
        migrations.AddConstraint(
            model_name="servicemode",
            constraint=models.CheckConstraint(
                condition=models.Q(("approve_within_s__gt", 0)), name="service_mode_time_positive"
            ),
        ),
        migrations.AddConstraint(
            model_name="studyfile",
            constraint=models.UniqueConstraint(fields=("study", "name"), name="study_file_once"),
        ),
        migrations.AddConstraint(
            model_name="studyrun",
            constraint=models.UniqueConstraint(fields=("study", "index"), name="study_run_once"),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(
                condition=models.Q(("state", "pending")), fields=["due_at"], name="webhook_delivery_due"
            ),
        ),
        migrations.AddIndex(
            model_name="webhookdelivery",
            index=models.Index(fields=["-created_at", "-id"], name="webhook_delivery_newest"),
        ),
        migrations.AddConstraint(
            model_name="webhookdelivery",
            constraint=models.UniqueConstraint(fields=("subscription", "event", "subject"), name="webhook_once"),
        ),
    ]
