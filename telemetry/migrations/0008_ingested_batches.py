from django.db import migrations, models

import telemetry.models.samples

FILL = """
INSERT INTO telemetry_ingestedbatches (agent, boot, seqs, received_at)
SELECT agent, boot, range_agg(int8range(seq, seq, '[]')), max(received_at) FROM telemetry_ingestbatch GROUP BY 1, 2
"""
EMPTY = """
INSERT INTO telemetry_ingestbatch (agent, boot, seq, rows, received_at)
SELECT agent, boot, generate_series(lower(one), upper(one) - 1), 0, received_at
FROM telemetry_ingestedbatches, unnest(seqs) one;
CREATE INDEX telemetry_ingestbatch_received_at ON telemetry_ingestbatch USING brin (received_at);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0007_gpu_energy"),
    ]

    operations = [
        migrations.CreateModel(
            name="IngestedBatches",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "agent", "boot", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("agent", models.CharField(max_length=80)),
                ("boot", models.CharField(max_length=40)),
                ("seqs", telemetry.models.samples.WholeNumberRanges()),
                ("received_at", models.DateTimeField()),
            ],
        ),
        migrations.RunSQL(FILL, EMPTY),
        migrations.DeleteModel(name="IngestBatch"),
    ]
