"""What-if: studies of a scenario under several policies, run in the simulator by the workers for long runs.

`fleet` and `traffic` make a scenario of what is in the database, `presets` lists those that come with the product,
`drafts` puts together what is asked for; `documents` reads and checks scenarios, `changes` alters them; `asking` takes
up what people ask for, `studies` finds and stops it; `running` is the worker's side, `experiments` the laboratory's;
`comparing` says what came of it; `applying` gives a run's policy to a service. docs/what-if.md.
"""
