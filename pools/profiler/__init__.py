"""Measures an engine under load and makes a profile of it: `greenserve node profile`.

plan.py says what is to be measured (pure), measurements.py does it through `pools.load_generator`, counter_watch.py
reads the meters meanwhile, profiling_journal.py keeps what is done, plan_runner.py goes through a plan, session.py
through a node's TP degrees, result.py makes profile, hull and errors of it, and profile_picture.py the values of a
picture. No Django here.
"""
