"""What-if: studies of a scenario under several policies, run in the simulator by the workers for long runs.

`fleet_scenario` and `scenario_traffic` make a scenario of what is in the database, `shipped_scenarios` lists those
that come with the product, `study_drafts` puts together what is asked for; `scenario_documents` reads and checks
scenarios, `scenario_changes` alters them; `study_requests` takes up what people ask for, `studies` finds and stops it;
`study_worker` is the worker's side, `experiment_studies` the laboratory's; `comparing` compares runs, `run_series` has
them over time; `applying` gives a run's policy to a service. `remote_simulations` runs what comes by `--distributed`.

See docs/what-if.md.
"""
