"""Says what a node waits for until it serves, and shows the line that makes a machine this node."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from frontend import reader_choices
from frontend.health import NodeHealth
from frontend.people.account import shown_once
from pools.access import audit, rights
from pools.models import JoinToken, Node
from pools.registration import join_tokens, node_identities
from pools.registration.join_line import JoinLine, join_line


@dataclass(frozen=True, slots=True)
class Joining:
    """Says how far a node is.

    Attributes:
        done: Its agent reports, and plans may use it.
        words: What it waits for, or that it has joined.
        line: What joins a machine as this node; None: none is to.
        open_form: Whether the node's form is the next step.
    """

    done: bool
    words: str
    line: JoinLine | None = None
    open_form: bool = False


def of(node: Node, state: NodeHealth, gpus: int) -> Joining:
    """Makes one query."""
    joined = JoinToken.objects.filter(node=node, used_at__isnull=False).order_by("-used_at").first()
    when = f"Joined at {reader_choices.clock(joined.used_at.timestamp())}. " if joined and joined.used_at else ""
    if state.state == "off":
        return Joining(True, f"{when}Its server: {state.server}. Plans may place instances here, which switch it on.")
    reports = state.state == "reporting"
    if reports and node.schedulable:
        return Joining(True, f"{when}Its agent reports, and plans may place instances here.")
    if reports:
        return Joining(False, f"{when}Its agent reports. It waits to be opened to planning.", open_form=True)
    if node.simulated and not gpus:
        return Joining(False, "It waits for its GPUs: enter them under Configure, GPUs. Its processes start then.")
    if node.simulated:
        log = f"greenserve logs simnode.{node.name}"
        return Joining(False, f"It waits for its processes, which start within seconds. If they do not: {log}.")
    if joined:
        words = "It waits for its agent: start the services that the join printed on the machine."
        return Joining(False, when + words, join_line(name=node.name))
    words = "It waits for its machine. Make a join token, and paste the line on the machine with the GPUs."
    return Joining(False, words, join_line(name=node.name))


def certified_until(node: Node) -> str:
    """Says when the node's certificate ends; empty: it has none that holds. Makes one query."""
    newest = node_identities.held(timezone.now()).filter(node=node).first()
    return "" if newest is None else reader_choices.clock(newest.expires_at.timestamp())


@require_POST
@rights.needs(rights.Right.OPERATE)
def revoke(request: HttpRequest, name: str) -> HttpResponse:
    """Lets a node in no more."""
    found = get_object_or_404(Node, name=name, cluster__site__in=rights.sites_of(request.user))
    if node_identities.revoke(audit.actor_of(request), found, timezone.now()):
        messages.success(request, f"Node {found} is let in no more. What runs on the machine goes on until you end it.")
    else:
        messages.warning(request, f"Node {found} has no certificate that holds.")
    return redirect("node", found.name)


@never_cache
@require_POST
@rights.needs(rights.Right.OPERATE)
def new_token(request: HttpRequest, name: str) -> HttpResponse:
    """Makes a join token for the node's cluster and shows the line with it, once."""
    found = get_object_or_404(Node, name=name, simulated=False, cluster__site__in=rights.sites_of(request.user))
    made, secret = join_tokens.issue(audit.actor_of(request), found.cluster)
    until = reader_choices.clock(made.expires_at.timestamp())
    line = join_line(secret, found.name)
    secrets = [("Paste on the machine", line.text), ("Good for", f"one machine, until {until}")]
    if line.caveat:
        secrets.append(("Reached from", line.caveat))
    return shown_once(request, f"Join {found} to {found.cluster}", secrets, reverse("node", args=[name]))
