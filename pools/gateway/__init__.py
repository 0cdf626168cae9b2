"""The OpenAI-compatible data plane: raw asyncio protocols, no ORM, and no Redis on the request path.

A request comes in at the top and passes through the floors; each may import what stands below it.

server.py    the parts put together, start and stop; __main__.py: the process; gateway_processes.py: others on
             the same port
handlers.py  which path does what
picker/      the other front door: the same decision for fleets whose bytes flow through Envoy
runtime.py   what gateway and picker share: the fleet's picture, the decision, the records; redis_tasks.py: their
             tasks with Redis
intake.py    from a request's bytes to a call that can be placed, and from its end to its record
relay/       from its place to its end: exchange.py, attempts and relayed bytes; continued_exchange.py and
             continuation.py: several engines generate one stream; web_relay.py: files and batches, relayed to the
             web process
placing/     which go now and where to, and which wait: instance_choice.py, dispatch.py, class_queue.py,
             slot.py;
             projected_admission.py and projections.py (throttLL'eM), emergencies.py (DynamoLLM), splitter.py and
             split_plans.py (DynaServe), deadline_clocks.py and deadline_looks.py (GreenServe), clock_requests.py;
             own_boards.py and shared_boards.py: what gateways tell each other of engines; unknown_senders.py
accounts/    what each call leaves: records.py, its row; request_journal.py, on disk before the client sees the end;
             held_rows.py, in memory while the disk takes none; request_shipper.py, to Redis;
             gateway_metrics.py; request_energy.py, reported to clients that ask; request_limits.py and
             networks.py: what tenants and keys may send, and from where; use_elsewhere.py: what tenants
             use at other gateways
requests/    bodies: endpoint.py, bodies.py and completion_bodies.py, validation.py, field_errors.py, features.py;
             answers: sse.py, responses.py, what streams tell; answer_model.py and engine_errors.py, what is changed in
             them; call.py, what all of this becomes
classify/    what a request will take: classifier.py, prompt_tokens.py, length_trainer.py; learned.py, over restarts
fleet/       what the gateway knows of it, in memory: view.py, instance.py; workers that register themselves
http/        both sides: client_protocol.py, a client's connection; upstream.py, engines'; known_heads.py; loop_turn.py:
             what is done once for all events of a turn of the loop
errors.py    refusals in OpenAI's shape; token_bucket.py: how much of something is allowed a second
"""
