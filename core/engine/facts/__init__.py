"""Published facts against the engine model: read a table of facts, predict what can be expressed, sum up the errors.

A fact is a row (source, quantity, condition, value, unit, used). Each source has a module here that says how its
condition is read: which engine, lengths, load. A condition that no reading covers is reported as not evaluated, with
the reason; nothing is left out silently.
"""

from core.engine.facts.evaluate import evaluate, summarise
from core.engine.facts.fact_table import Comparison, Evaluation, Fact, FactsError, Summary, read_facts

__all__ = ["Comparison", "Evaluation", "Fact", "FactsError", "Summary", "evaluate", "read_facts", "summarise"]
