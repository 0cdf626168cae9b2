"""The minutes of engines' samples."""

FILL = """
INSERT INTO telemetry_engineminute (instance_id, start_at, samples, running, waiting, kv_usage_max, sm_clock_mhz)
SELECT instance_id, date_trunc('minute', at) AS minute, count(*), avg(running), avg(waiting), max(kv_usage),
       avg(sm_clock_mhz)
FROM telemetry_instancesample
WHERE at >= %(start)s AND at < %(end)s AND date_trunc('minute', at) = ANY(%(minutes)s) GROUP BY 1, 2
ON CONFLICT (instance_id, start_at) DO UPDATE
SET samples = excluded.samples, running = excluded.running, waiting = excluded.waiting,
    kv_usage_max = excluded.kv_usage_max, sm_clock_mhz = excluded.sm_clock_mhz
"""
