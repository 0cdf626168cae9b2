"""Sketches of demand: what came, and what ended, in each stretch of 5 s."""

from __future__ import annotations

from django.db import models

KEPT_S = 7_200  # loops look back an hour at most


class DemandSketch(models.Model):
    """Requests of about the same lengths that came, or ended, in the stretch that begins at `start_at`. The database
    adds what records are written.

    The prompt lies in [prompt_from, prompt_to) and the predicted output in [output_from, output_to); -1: the prompt's
    length is not known. Tokens are of those that came. `request_class`: the gateway's choice, empty if it made none.
    """

    pk = models.CompositePrimaryKey("service", "start_at", "request_class", "prompt_from", "output_from")
    service = models.CharField(max_length=100)
    start_at = models.DateTimeField(db_index=True)
    request_class = models.CharField(max_length=20, blank=True)
    prompt_from = models.IntegerField()
    prompt_to = models.IntegerField()
    output_from = models.IntegerField()
    output_to = models.IntegerField()
    requests = models.IntegerField()
    prompt_tokens = models.BigIntegerField()
    output_tokens = models.BigIntegerField()
    context_tokens = models.FloatField(help_text="Sum of output x (prompt + output / 2).")
    ended = models.IntegerField(help_text="Requests that ended in it, whenever they came.")

    def __str__(self) -> str:
        return f"{self.service} {self.start_at:%Y-%m-%d %H:%M:%S} {self.requests} requests"
