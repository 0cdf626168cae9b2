"""The REST API's resources, for asyncio.

Made from the API's OpenAPI document by `make client`: change the API, not this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Unpack
from uuid import UUID

from . import models as m
from .calls import Call, Upload, key_segment, segment
from .paging import PAGE_SIZE, AsyncRows
from .transport import AsyncTransport, new_key
from .waiting import AsyncWaits


class AsyncAdapters:
    """`/api/v1/adapters/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.LoraAdapterChange], /) -> tuple[m.LoraAdapter, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "adapters/", body=bodies), tuple[m.LoraAdapter, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewLoraAdapter]) -> m.LoraAdapter:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "adapters/", body=fields, key=new_key(idempotency_key)), m.LoraAdapter
        )

    async def create_many(
        self, bodies: Sequence[m.NewLoraAdapter], /, *, idempotency_key: str | None = None
    ) -> tuple[m.LoraAdapter, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "adapters/", body=bodies, key=new_key(idempotency_key)), tuple[m.LoraAdapter, ...]
        )

    def list(
        self,
        *,
        name: str | None = None,
        ordering: Literal["name", "-name", "source", "-source", "rank", "-rank", "id", "-id"] | None = None,
        rank: int | None = None,
        service: str | None = None,
        source: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.LoraAdapter]:
        """Returns the rows, a page at a time. A fine-tune of a service's model, which clients ask for by its own
        name. Engines load it when one does.

        Args:
            name: The `model` that clients send.
            ordering: The field to order by; with a minus the largest first.
            rank: `r` in its adapter_config.json.
            service: The `model` that clients send.
            source: Its weights: a Hugging Face id, or a folder on the nodes that have its engines.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "adapters/",
                {
                    "name": name,
                    "ordering": ordering,
                    "rank": rank,
                    "service": service,
                    "source": source,
                    "limit": page_size,
                },
            ),
            m.LoraAdapter,
        )

    async def validate(self, **fields: Unpack[m.NewLoraAdapter]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "adapters/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewLoraAdapter | m.LoraAdapterChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "adapters/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.LoraAdapterChanges]) -> m.LoraAdapter:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"adapters/{key_segment(key)}/", body=fields, etag=etag), m.LoraAdapter
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"adapters/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.LoraAdapter:
        """Returns one. A fine-tune of a service's model, which clients ask for by its own name. Engines load it when
        one does.
        """
        return await self._transport.read(Call("GET", f"adapters/{key_segment(key)}/"), m.LoraAdapter)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.LoraAdapterChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"adapters/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncAlertSilences:
    """`/api/v1/alert-silences/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewSilence]) -> m.Silence:
        """Keeps a rule quiet for a while, of one subject or of all."""
        return await self._transport.read(
            Call("POST", "alert-silences/", body=fields, key=new_key(idempotency_key)), m.Silence
        )

    def list(
        self,
        *,
        ordering: Literal["expires_at", "-expires_at", "created_at", "-created_at"] | None = None,
        rule: str | None = None,
        subject: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Silence]:
        """Returns the rows, a page at a time. Silences in force: nobody is notified of their rules' alerts. POST
        makes one, DELETE ends one.

        Args:
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET", "alert-silences/", {"ordering": ordering, "rule": rule, "subject": subject, "limit": page_size}
            ),
            m.Silence,
        )

    async def delete(self, id: int, /) -> None:
        """Ends it now."""
        await self._transport.send(Call("DELETE", f"alert-silences/{segment(id)}/"))

    async def get(self, id: int, /) -> m.Silence:
        """Returns one. Silences in force: nobody is notified of their rules' alerts. POST makes one, DELETE ends
        one.
        """
        return await self._transport.read(Call("GET", f"alert-silences/{segment(id)}/"), m.Silence)


class AsyncAlerts:
    """`/api/v1/alerts/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        level: m.Level | None = None,
        opened_after: datetime | None = None,
        opened_before: datetime | None = None,
        ordering: Literal["opened_at", "-opened_at", "last_seen_at", "-last_seen_at"] | None = None,
        rule: str | None = None,
        state: m.State | None = None,
        subject: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Alert]:
        """Returns the rows, a page at a time. Alerts, the newest first.

        Args:
            level: * `bad` - Bad
            opened_after: Only those after this. When it had held for long enough.
            opened_before: Only those before this. When it had held for long enough.
            ordering: The field to order by; with a minus the largest first.
            state: * `open` - Open
            subject: Whose: a site, node, pool, service; empty: all.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "alerts/",
                {
                    "level": level,
                    "opened_after": opened_after,
                    "opened_before": opened_before,
                    "ordering": ordering,
                    "rule": rule,
                    "state": state,
                    "subject": subject,
                    "limit": page_size,
                },
            ),
            m.Alert,
        )

    async def get(self, id: int, /) -> m.Alert:
        """Returns one. Alerts, the newest first."""
        return await self._transport.read(Call("GET", f"alerts/{segment(id)}/"), m.Alert)

    async def acknowledge(self, id: int, /, *, idempotency_key: str | None = None) -> m.Alert:
        """Says that somebody looks after it. 409 where it is not open: somebody was first, or it is over."""
        return await self._transport.read(
            Call("POST", f"alerts/{segment(id)}/acknowledge/", key=new_key(idempotency_key)), m.Alert
        )


class AsyncApprovals:
    """`/api/v1/approvals/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        loop: str | None = None,
        service: str | None = None,
        status: m.Status | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Approval]:
        """Returns the rows, a page at a time. Plans that wait for a person, and what became of them; the newest
        first. They name sites: of a service they are for who may see all of its sites.

        Args:
            service: The `model` that clients send.
            status: * `pending` - Pending
        """
        return AsyncRows(
            self._transport,
            Call("GET", "approvals/", {"loop": loop, "service": service, "status": status, "limit": page_size}),
            m.Approval,
        )

    async def get(self, id: int, /) -> m.Approval:
        """Returns one. Plans that wait for a person, and what became of them; the newest first. They name sites: of
        a service they are for who may see all of its sites.
        """
        return await self._transport.read(Call("GET", f"approvals/{segment(id)}/"), m.Approval)

    async def approve(self, id: int, /, *, idempotency_key: str | None = None) -> m.Approval:
        """Carries out exactly what was planned. Look at `status`: it may be too late, or out of date."""
        return await self._transport.read(
            Call("POST", f"approvals/{segment(id)}/approve/", key=new_key(idempotency_key)), m.Approval
        )

    async def reject(
        self, id: int, /, *, idempotency_key: str | None = None, **fields: Unpack[m.Rejection]
    ) -> m.Approval:
        """It is not carried out; the loop decides again at its next turn."""
        return await self._transport.read(
            Call("POST", f"approvals/{segment(id)}/reject/", body=fields, key=new_key(idempotency_key)), m.Approval
        )


class AsyncAudit:
    """`/api/v1/audit/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        action: str | None = None,
        at_after: datetime | None = None,
        at_before: datetime | None = None,
        channel: str | None = None,
        kind: str | None = None,
        object_key: str | None = None,
        request_id: str | None = None,
        who: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Audit]:
        """Returns the rows, a page at a time. The audit trail, the newest first: who changed what, when, from where,
        before and after. For administrators.

        Args:
            at_after: Only those after this.
            at_before: Only those before this.
            kind: What was changed, for example site.
            who: User name at that moment.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "audit/",
                {
                    "action": action,
                    "at_after": at_after,
                    "at_before": at_before,
                    "channel": channel,
                    "kind": kind,
                    "object_key": object_key,
                    "request_id": request_id,
                    "who": who,
                    "limit": page_size,
                },
            ),
            m.Audit,
        )

    async def get(self, id: int, /) -> m.Audit:
        """Returns one. The audit trail, the newest first: who changed what, when, from where, before and after. For
        administrators.
        """
        return await self._transport.read(Call("GET", f"audit/{segment(id)}/"), m.Audit)


class AsyncBudgets:
    """`/api/v1/budgets/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.BudgetChange], /) -> tuple[m.Budget, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "budgets/", body=bodies), tuple[m.Budget, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewBudget]) -> m.Budget:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "budgets/", body=fields, key=new_key(idempotency_key)), m.Budget)

    async def create_many(
        self, bodies: Sequence[m.NewBudget], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Budget, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "budgets/", body=bodies, key=new_key(idempotency_key)), tuple[m.Budget, ...]
        )

    def list(
        self,
        *,
        currency: str | None = None,
        ordering: Literal["currency", "-currency", "id", "-id"] | None = None,
        refuses: bool | None = None,
        tenant: str | None = None,
        tokens: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Budget]:
        """Returns the rows, a page at a time. What a tenant may use, emit and cost in a month. Its page says how
        much is used. Gateways refuse its requests once it is spent, where that is set.

        Args:
            currency: Of the amount, such as USD.
            ordering: The field to order by; with a minus the largest first.
            tokens: Tokens of a month, of prompts and answers.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "budgets/",
                {
                    "currency": currency,
                    "ordering": ordering,
                    "refuses": refuses,
                    "tenant": tenant,
                    "tokens": tokens,
                    "limit": page_size,
                },
            ),
            m.Budget,
        )

    async def validate(self, **fields: Unpack[m.NewBudget]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "budgets/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewBudget | m.BudgetChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "budgets/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.BudgetChanges]) -> m.Budget:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"budgets/{key_segment(key)}/", body=fields, etag=etag), m.Budget
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"budgets/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Budget:
        """Returns one. What a tenant may use, emit and cost in a month. Its page says how much is used. Gateways
        refuse its requests once it is spent, where that is set.
        """
        return await self._transport.read(Call("GET", f"budgets/{key_segment(key)}/"), m.Budget)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.BudgetChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"budgets/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncClasses:
    """`/api/v1/classes/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.RequestClassChange], /) -> tuple[m.RequestClass, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "classes/", body=bodies), tuple[m.RequestClass, ...])

    async def create(
        self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewRequestClass]
    ) -> m.RequestClass:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "classes/", body=fields, key=new_key(idempotency_key)), m.RequestClass
        )

    async def create_many(
        self, bodies: Sequence[m.NewRequestClass], /, *, idempotency_key: str | None = None
    ) -> tuple[m.RequestClass, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "classes/", body=bodies, key=new_key(idempotency_key)), tuple[m.RequestClass, ...]
        )

    def list(
        self,
        *,
        input_max: int | None = None,
        input_min: int | None = None,
        name: str | None = None,
        ordering: Literal[
            "name", "-name", "rank", "-rank", "input_min", "-input_min", "output_min", "-output_min", "id", "-id"
        ]
        | None = None,
        output_max: int | None = None,
        output_min: int | None = None,
        partition: str | None = None,
        rank: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.RequestClass]:
        """Returns the rows, a page at a time. A request class of a partition. Lower bounds are inclusive, upper ones
        exclusive; empty: no bound.

        Args:
            ordering: The field to order by; with a minus the largest first.
            rank: Order by size; spilling goes upwards.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "classes/",
                {
                    "input_max": input_max,
                    "input_min": input_min,
                    "name": name,
                    "ordering": ordering,
                    "output_max": output_max,
                    "output_min": output_min,
                    "partition": partition,
                    "rank": rank,
                    "limit": page_size,
                },
            ),
            m.RequestClass,
        )

    async def validate(self, **fields: Unpack[m.NewRequestClass]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "classes/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewRequestClass | m.RequestClassChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "classes/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.RequestClassChanges]) -> m.RequestClass:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"classes/{key_segment(key)}/", body=fields, etag=etag), m.RequestClass
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"classes/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.RequestClass:
        """Returns one. A request class of a partition. Lower bounds are inclusive, upper ones exclusive; empty: no
        bound.
        """
        return await self._transport.read(Call("GET", f"classes/{key_segment(key)}/"), m.RequestClass)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.RequestClassChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"classes/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncClusters:
    """`/api/v1/clusters/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ClusterChange], /) -> tuple[m.Cluster, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "clusters/", body=bodies), tuple[m.Cluster, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewCluster]) -> m.Cluster:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "clusters/", body=fields, key=new_key(idempotency_key)), m.Cluster
        )

    async def create_many(
        self, bodies: Sequence[m.NewCluster], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Cluster, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "clusters/", body=bodies, key=new_key(idempotency_key)), tuple[m.Cluster, ...]
        )

    def list(
        self,
        *,
        name: str | None = None,
        ordering: Literal["name", "-name", "id", "-id"] | None = None,
        site: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Cluster]:
        """Returns the rows, a page at a time. Nodes of one site that are run together.

        Args:
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call("GET", "clusters/", {"name": name, "ordering": ordering, "site": site, "limit": page_size}),
            m.Cluster,
        )

    async def validate(self, **fields: Unpack[m.NewCluster]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "clusters/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewCluster | m.ClusterChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "clusters/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ClusterChanges]) -> m.Cluster:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"clusters/{key_segment(key)}/", body=fields, etag=etag), m.Cluster
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"clusters/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Cluster:
        """Returns one. Nodes of one site that are run together."""
        return await self._transport.read(Call("GET", f"clusters/{key_segment(key)}/"), m.Cluster)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ClusterChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"clusters/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncDecisions:
    """`/api/v1/decisions/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        at_after: datetime | None = None,
        at_before: datetime | None = None,
        epoch: int | None = None,
        instance_uid: UUID | str | None = None,
        kind: m.DecisionKind | None = None,
        ordering: Literal["at", "-at"] | None = None,
        pool: int | None = None,
        reason: str | None = None,
        service: str | None = None,
        site: str | None = None,
        text: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Decision]:
        """Returns the rows, a page at a time. Decisions of the loops, the newest first. A single one has its inputs,
        alternatives and realised figures.

        Args:
            at_after: Only those after this.
            at_before: Only those before this.
            kind: * `carbon` - Carbon
            ordering: The field to order by; with a minus the largest first.
            reason: Why: one of the reasons that steps give.
            service: The `model` that clients send.
            text: Only those with, in any case, this.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "decisions/",
                {
                    "at_after": at_after,
                    "at_before": at_before,
                    "epoch": epoch,
                    "instance_uid": instance_uid,
                    "kind": kind,
                    "ordering": ordering,
                    "pool": pool,
                    "reason": reason,
                    "service": service,
                    "site": site,
                    "text": text,
                    "limit": page_size,
                },
            ),
            m.Decision,
        )

    async def get(self, id: int, /) -> m.DecisionDetail:
        """Returns one. Decisions of the loops, the newest first. A single one has its inputs, alternatives and
        realised figures.
        """
        return await self._transport.read(Call("GET", f"decisions/{segment(id)}/"), m.DecisionDetail)


class AsyncEmbodiedFactors:
    """`/api/v1/embodied-factors/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.EmbodiedFactorChange], /) -> tuple[m.EmbodiedFactor, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "embodied-factors/", body=bodies), tuple[m.EmbodiedFactor, ...])

    async def create(
        self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewEmbodiedFactor]
    ) -> m.EmbodiedFactor:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "embodied-factors/", body=fields, key=new_key(idempotency_key)), m.EmbodiedFactor
        )

    async def create_many(
        self, bodies: Sequence[m.NewEmbodiedFactor], /, *, idempotency_key: str | None = None
    ) -> tuple[m.EmbodiedFactor, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "embodied-factors/", body=bodies, key=new_key(idempotency_key)), tuple[m.EmbodiedFactor, ...]
        )

    def list(
        self,
        *,
        gpu_type: str | None = None,
        gpus_per_server: int | None = None,
        ordering: Literal[
            "gpu_type",
            "-gpu_type",
            "gpu_kg",
            "-gpu_kg",
            "server_kg",
            "-server_kg",
            "gpus_per_server",
            "-gpus_per_server",
            "lifespan_years",
            "-lifespan_years",
            "valid_from",
            "-valid_from",
            "source",
            "-source",
            "version",
            "-version",
            "id",
            "-id",
        ]
        | None = None,
        source: str | None = None,
        valid_after: datetime | None = None,
        valid_before: datetime | None = None,
        version: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.EmbodiedFactor]:
        """Returns the rows, a page at a time. Emissions of making a GPU and its share of the server.

        Args:
            ordering: The field to order by; with a minus the largest first.
            source: Where the figure is from: shown beside what it is used for.
            valid_after: Only those after this. From when it holds.
            valid_before: Only those before this. From when it holds.
            version: The source's own version or date.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "embodied-factors/",
                {
                    "gpu_type": gpu_type,
                    "gpus_per_server": gpus_per_server,
                    "ordering": ordering,
                    "source": source,
                    "valid_after": valid_after,
                    "valid_before": valid_before,
                    "version": version,
                    "limit": page_size,
                },
            ),
            m.EmbodiedFactor,
        )

    async def validate(self, **fields: Unpack[m.NewEmbodiedFactor]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "embodied-factors/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewEmbodiedFactor | m.EmbodiedFactorChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "embodied-factors/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(
        self, key: str | int, /, *, etag: str, **fields: Unpack[m.EmbodiedFactorChanges]
    ) -> m.EmbodiedFactor:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"embodied-factors/{key_segment(key)}/", body=fields, etag=etag), m.EmbodiedFactor
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"embodied-factors/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.EmbodiedFactor:
        """Returns one. Emissions of making a GPU and its share of the server."""
        return await self._transport.read(Call("GET", f"embodied-factors/{key_segment(key)}/"), m.EmbodiedFactor)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.EmbodiedFactorChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"embodied-factors/{key_segment(key)}/validate/", body=fields, harmless=True),
            m.ValidationResult,
        )


class AsyncEngineProfiles:
    """`/api/v1/engine-profiles/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewEngineProfiles]) -> m.BroughtIn:
        """Stores a version for each configuration among the rows, all or none. What is there already stays so (200)."""
        return await self._transport.read(
            Call("POST", "engine-profiles/", body=fields, key=new_key(idempotency_key)), m.BroughtIn
        )

    def list(
        self,
        *,
        engine: str | None = None,
        gpu_type: str | None = None,
        model: str | None = None,
        ordering: Literal["created_at", "-created_at", "measured_at", "-measured_at"] | None = None,
        published_after: datetime | None = None,
        source: m.Source | None = None,
        tp: int | None = None,
        version: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.EngineProfile]:
        """Returns the rows, a page at a time. Measured profiles of engines, the newest first. Of a configuration at
        most one version is published.

        Args:
            model: The model that was measured.
            ordering: The field to order by; with a minus the largest first.
            published_after: Only those after this. Empty: no decision goes by it.
            source: * `measured` - Measured
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "engine-profiles/",
                {
                    "engine": engine,
                    "gpu_type": gpu_type,
                    "model": model,
                    "ordering": ordering,
                    "published_after": published_after,
                    "source": source,
                    "tp": tp,
                    "version": version,
                    "limit": page_size,
                },
            ),
            m.EngineProfile,
        )

    async def get(self, id: int, /) -> m.EngineProfileDetail:
        """Returns one. Measured profiles of engines, the newest first. Of a configuration at most one version is
        published.
        """
        return await self._transport.read(Call("GET", f"engine-profiles/{segment(id)}/"), m.EngineProfileDetail)

    async def csv(self, id: int, /) -> bytes:
        """Returns its points as the bytes of a CSV in UTF-8, as an import reads them."""
        answer = await self._transport.send(Call("GET", f"engine-profiles/{segment(id)}/csv/", accept="*/*"))
        return answer.content

    async def publish(self, id: int, /, *, idempotency_key: str | None = None) -> m.EngineProfileDetail:
        """Decisions go by it within seconds, in place of another of its configuration."""
        return await self._transport.read(
            Call("POST", f"engine-profiles/{segment(id)}/publish/", key=new_key(idempotency_key)), m.EngineProfileDetail
        )

    async def withdraw(self, id: int, /, *, idempotency_key: str | None = None) -> m.EngineProfileDetail:
        """No decision goes by it any more; one that is not published is left as it is."""
        return await self._transport.read(
            Call("POST", f"engine-profiles/{segment(id)}/withdraw/", key=new_key(idempotency_key)),
            m.EngineProfileDetail,
        )


class AsyncEngineResiduals:
    """`/api/v1/engine-residuals/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        drifted: bool | None = None,
        engine: str | None = None,
        gpu_type: str | None = None,
        ordering: Literal["at", "-at"] | None = None,
        shape: str | None = None,
        tp: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.EngineResidual]:
        """Returns the rows, a page at a time. Residuals of engines that serve: calibration keeps one for each
        configuration.

        Args:
            ordering: The field to order by; with a minus the largest first.
            shape: The model's shape, or its name where no shape is known.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "engine-residuals/",
                {
                    "drifted": drifted,
                    "engine": engine,
                    "gpu_type": gpu_type,
                    "ordering": ordering,
                    "shape": shape,
                    "tp": tp,
                    "limit": page_size,
                },
            ),
            m.EngineResidual,
        )

    async def get(self, id: int, /) -> m.EngineResidual:
        """Returns one. Residuals of engines that serve: calibration keeps one for each configuration."""
        return await self._transport.read(Call("GET", f"engine-residuals/{segment(id)}/"), m.EngineResidual)


class AsyncEpochs:
    """`/api/v1/epochs/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        due_after: datetime | None = None,
        due_before: datetime | None = None,
        kind: m.EpochKind | None = None,
        ordering: Literal["due_at", "-due_at", "finished_at", "-finished_at", "period_s", "-period_s"] | None = None,
        service: str | None = None,
        status: m.EpochStatus | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Epoch]:
        """Returns the rows, a page at a time. Runs of the slow loops, the newest first. Of a service they are for
        who may see all of its sites.

        Args:
            due_after: Only those after this.
            due_before: Only those before this.
            kind: * `carbon` - Carbon
            ordering: The field to order by; with a minus the largest first.
            service: The `model` that clients send.
            status: * `applied` - Applied
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "epochs/",
                {
                    "due_after": due_after,
                    "due_before": due_before,
                    "kind": kind,
                    "ordering": ordering,
                    "service": service,
                    "status": status,
                    "limit": page_size,
                },
            ),
            m.Epoch,
        )

    async def get(self, id: int, /) -> m.Epoch:
        """Returns one. Runs of the slow loops, the newest first. Of a service they are for who may see all of its
        sites.
        """
        return await self._transport.read(Call("GET", f"epochs/{segment(id)}/"), m.Epoch)


class AsyncExperiments:
    """`/api/v1/experiments/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(self) -> AsyncRows[m.Experiment]:
        """Returns the rows, a page at a time. Lists the papers' experiments that the product knows."""
        return AsyncRows(self._transport, Call("GET", "experiments/"), m.Experiment)

    async def get(self, name: str, /) -> m.Experiment:
        """Returns one experiment: its runs, what was published, and which trace it needs."""
        return await self._transport.read(Call("GET", f"experiments/{segment(name)}/"), m.Experiment)


class AsyncFeeds:
    """`/api/v1/feeds/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.FeedChange], /) -> tuple[m.Feed, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "feeds/", body=bodies), tuple[m.Feed, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewFeed]) -> m.Feed:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "feeds/", body=fields, key=new_key(idempotency_key)), m.Feed)

    async def create_many(
        self, bodies: Sequence[m.NewFeed], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Feed, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "feeds/", body=bodies, key=new_key(idempotency_key)), tuple[m.Feed, ...]
        )

    def list(
        self,
        *,
        factor: str | None = None,
        forecast_model: str | None = None,
        ordering: Literal[
            "signal",
            "-signal",
            "provider",
            "-provider",
            "zone",
            "-zone",
            "factor",
            "-factor",
            "source",
            "-source",
            "forecast_model",
            "-forecast_model",
            "id",
            "-id",
        ]
        | None = None,
        provider: str | None = None,
        signal: m.Signal | None = None,
        site: str | None = None,
        source: str | None = None,
        zone: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Feed]:
        """Returns the rows, a page at a time. A source of carbon intensity or of prices. Keys of providers are set
        in the environment, never here.

        Args:
            factor: direct or lifecycle; blank: the provider's usual.
            forecast_model: The model whose forecast counts; blank: the provider's own.
            ordering: The field to order by; with a minus the largest first.
            provider: Name of the adapter in settings.CARBON_PROVIDERS.
            signal: * `average` - Average
            source: Shown under every figure drawn from it.
            zone: The provider's name of the zone; blank: the site's.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "feeds/",
                {
                    "factor": factor,
                    "forecast_model": forecast_model,
                    "ordering": ordering,
                    "provider": provider,
                    "signal": signal,
                    "site": site,
                    "source": source,
                    "zone": zone,
                    "limit": page_size,
                },
            ),
            m.Feed,
        )

    async def validate(self, **fields: Unpack[m.NewFeed]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "feeds/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewFeed | m.FeedChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "feeds/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.FeedChanges]) -> m.Feed:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"feeds/{key_segment(key)}/", body=fields, etag=etag), m.Feed)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"feeds/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Feed:
        """Returns one. A source of carbon intensity or of prices. Keys of providers are set in the environment,
        never here.
        """
        return await self._transport.read(Call("GET", f"feeds/{key_segment(key)}/"), m.Feed)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.FeedChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"feeds/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncGpuRates:
    """`/api/v1/gpu-rates/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.GpuHourRateChange], /) -> tuple[m.GpuHourRate, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "gpu-rates/", body=bodies), tuple[m.GpuHourRate, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewGpuHourRate]) -> m.GpuHourRate:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "gpu-rates/", body=fields, key=new_key(idempotency_key)), m.GpuHourRate
        )

    async def create_many(
        self, bodies: Sequence[m.NewGpuHourRate], /, *, idempotency_key: str | None = None
    ) -> tuple[m.GpuHourRate, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "gpu-rates/", body=bodies, key=new_key(idempotency_key)), tuple[m.GpuHourRate, ...]
        )

    def list(
        self,
        *,
        currency: str | None = None,
        gpu_type: str | None = None,
        ordering: Literal[
            "gpu_type",
            "-gpu_type",
            "rate_per_gpu_hour",
            "-rate_per_gpu_hour",
            "currency",
            "-currency",
            "valid_from",
            "-valid_from",
            "source",
            "-source",
            "version",
            "-version",
            "id",
            "-id",
        ]
        | None = None,
        site: str | None = None,
        source: str | None = None,
        valid_after: datetime | None = None,
        valid_before: datetime | None = None,
        version: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.GpuHourRate]:
        """Returns the rows, a page at a time. What an hour of a GPU costs: bought, leased or rented.

        Args:
            gpu_type: As in the inventory of GPUs.
            ordering: The field to order by; with a minus the largest first.
            source: Where the figure is from: shown beside what it is used for.
            valid_after: Only those after this. From when it holds.
            valid_before: Only those before this. From when it holds.
            version: The source's own version or date.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "gpu-rates/",
                {
                    "currency": currency,
                    "gpu_type": gpu_type,
                    "ordering": ordering,
                    "site": site,
                    "source": source,
                    "valid_after": valid_after,
                    "valid_before": valid_before,
                    "version": version,
                    "limit": page_size,
                },
            ),
            m.GpuHourRate,
        )

    async def validate(self, **fields: Unpack[m.NewGpuHourRate]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpu-rates/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewGpuHourRate | m.GpuHourRateChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpu-rates/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.GpuHourRateChanges]) -> m.GpuHourRate:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"gpu-rates/{key_segment(key)}/", body=fields, etag=etag), m.GpuHourRate
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"gpu-rates/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.GpuHourRate:
        """Returns one. What an hour of a GPU costs: bought, leased or rented."""
        return await self._transport.read(Call("GET", f"gpu-rates/{key_segment(key)}/"), m.GpuHourRate)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.GpuHourRateChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"gpu-rates/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncGpuTypes:
    """`/api/v1/gpu-types/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.GpuTypeChange], /) -> tuple[m.GpuType, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "gpu-types/", body=bodies), tuple[m.GpuType, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewGpuType]) -> m.GpuType:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "gpu-types/", body=fields, key=new_key(idempotency_key)), m.GpuType
        )

    async def create_many(
        self, bodies: Sequence[m.NewGpuType], /, *, idempotency_key: str | None = None
    ) -> tuple[m.GpuType, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "gpu-types/", body=bodies, key=new_key(idempotency_key)), tuple[m.GpuType, ...]
        )

    def list(
        self,
        *,
        like: str | None = None,
        name: str | None = None,
        ordering: Literal[
            "name",
            "-name",
            "peak_tflops",
            "-peak_tflops",
            "memory_gb",
            "-memory_gb",
            "memory_gb_per_s",
            "-memory_gb_per_s",
            "link_gb_per_s",
            "-link_gb_per_s",
            "tdp_w",
            "-tdp_w",
            "min_mhz",
            "-min_mhz",
            "max_mhz",
            "-max_mhz",
            "like",
            "-like",
            "source",
            "-source",
            "id",
            "-id",
        ]
        | None = None,
        source: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.GpuType]:
        """Returns the rows, a page at a time. A GPU product beyond those that are shipped, by its data sheet. Plans
        count with wide margins.

        Args:
            like: The measured type whose efficiencies it is given until it has a profile of its own.
            name: For example L40S-48GB.
            ordering: The field to order by; with a minus the largest first.
            source: Where these figures are from.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "gpu-types/",
                {"like": like, "name": name, "ordering": ordering, "source": source, "limit": page_size},
            ),
            m.GpuType,
        )

    async def validate(self, **fields: Unpack[m.NewGpuType]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpu-types/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewGpuType | m.GpuTypeChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpu-types/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.GpuTypeChanges]) -> m.GpuType:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"gpu-types/{key_segment(key)}/", body=fields, etag=etag), m.GpuType
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"gpu-types/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.GpuType:
        """Returns one. A GPU product beyond those that are shipped, by its data sheet. Plans count with wide
        margins.
        """
        return await self._transport.read(Call("GET", f"gpu-types/{key_segment(key)}/"), m.GpuType)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.GpuTypeChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"gpu-types/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncGpus:
    """`/api/v1/gpus/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.GpuChange], /) -> tuple[m.Gpu, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "gpus/", body=bodies), tuple[m.Gpu, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewGpu]) -> m.Gpu:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "gpus/", body=fields, key=new_key(idempotency_key)), m.Gpu)

    async def create_many(
        self, bodies: Sequence[m.NewGpu], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Gpu, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "gpus/", body=bodies, key=new_key(idempotency_key)), tuple[m.Gpu, ...]
        )

    def list(
        self,
        *,
        gpu_type: str | None = None,
        index: int | None = None,
        node: str | None = None,
        ordering: Literal[
            "index",
            "-index",
            "uuid",
            "-uuid",
            "gpu_type",
            "-gpu_type",
            "memory_gb",
            "-memory_gb",
            "min_mhz",
            "-min_mhz",
            "max_mhz",
            "-max_mhz",
            "tdp_w",
            "-tdp_w",
            "id",
            "-id",
        ]
        | None = None,
        site: str | None = None,
        uuid: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Gpu]:
        """Returns the rows, a page at a time. What plans count with.

        Args:
            gpu_type: Name in the engine model, for example A100-80GB.
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "gpus/",
                {
                    "gpu_type": gpu_type,
                    "index": index,
                    "node": node,
                    "ordering": ordering,
                    "site": site,
                    "uuid": uuid,
                    "limit": page_size,
                },
            ),
            m.Gpu,
        )

    async def validate(self, **fields: Unpack[m.NewGpu]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpus/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewGpu | m.GpuChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "gpus/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.GpuChanges]) -> m.Gpu:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"gpus/{key_segment(key)}/", body=fields, etag=etag), m.Gpu)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"gpus/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Gpu:
        """Returns one. What plans count with."""
        return await self._transport.read(Call("GET", f"gpus/{key_segment(key)}/"), m.Gpu)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.GpuChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"gpus/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncInstances:
    """`/api/v1/instances/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        desired: m.Desired | None = None,
        gpu_type: str | None = None,
        model: str | None = None,
        node: str | None = None,
        ordering: Literal[
            "created_at", "-created_at", "gpu_type", "-gpu_type", "tp", "-tp", "state", "-state", "desired", "-desired"
        ]
        | None = None,
        pool: int | None = None,
        service: str | None = None,
        site: str | None = None,
        state: m.InstanceState | None = None,
        tp: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Instance]:
        """Returns the rows, a page at a time. Replicas of models on GPUs: what is wanted of each, and what was last
        reported of it. The newest first. Those without a node registered themselves with a gateway.

        Args:
            desired: * `running` - Running
            ordering: The field to order by; with a minus the largest first.
            service: The `model` that clients send.
            state: * `pending` - Pending
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "instances/",
                {
                    "desired": desired,
                    "gpu_type": gpu_type,
                    "model": model,
                    "node": node,
                    "ordering": ordering,
                    "pool": pool,
                    "service": service,
                    "site": site,
                    "state": state,
                    "tp": tp,
                    "limit": page_size,
                },
            ),
            m.Instance,
        )

    async def get(self, uid: str, /) -> m.Instance:
        """Returns one. Replicas of models on GPUs: what is wanted of each, and what was last reported of it. The
        newest first. Those without a node registered themselves with a gateway.
        """
        return await self._transport.read(Call("GET", f"instances/{segment(uid)}/"), m.Instance)


class AsyncInstrumentHours:
    """`/api/v1/instrument-hours/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ContractHourChange], /) -> tuple[m.ContractHour, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "instrument-hours/", body=bodies), tuple[m.ContractHour, ...])

    async def create(
        self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewContractHour]
    ) -> m.ContractHour:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "instrument-hours/", body=fields, key=new_key(idempotency_key)), m.ContractHour
        )

    async def create_many(
        self, bodies: Sequence[m.NewContractHour], /, *, idempotency_key: str | None = None
    ) -> tuple[m.ContractHour, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "instrument-hours/", body=bodies, key=new_key(idempotency_key)), tuple[m.ContractHour, ...]
        )

    def list(
        self,
        *,
        instrument: str | None = None,
        ordering: Literal["start_at", "-start_at", "source", "-source", "id", "-id"] | None = None,
        site: str | None = None,
        source: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.ContractHour]:
        """Returns the rows, a page at a time. What a contract whose generation is metered generated in an hour: what
        hourly matching goes by.

        Args:
            instrument: Contract or certificate numbers, or the disclosure.
            ordering: The field to order by; with a minus the largest first.
            source: Whose meter, or which statement.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "instrument-hours/",
                {"instrument": instrument, "ordering": ordering, "site": site, "source": source, "limit": page_size},
            ),
            m.ContractHour,
        )

    async def validate(self, **fields: Unpack[m.NewContractHour]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "instrument-hours/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewContractHour | m.ContractHourChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "instrument-hours/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ContractHourChanges]) -> m.ContractHour:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"instrument-hours/{key_segment(key)}/", body=fields, etag=etag), m.ContractHour
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"instrument-hours/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.ContractHour:
        """Returns one. What a contract whose generation is metered generated in an hour: what hourly matching goes
        by.
        """
        return await self._transport.read(Call("GET", f"instrument-hours/{key_segment(key)}/"), m.ContractHour)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ContractHourChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"instrument-hours/{key_segment(key)}/validate/", body=fields, harmless=True),
            m.ValidationResult,
        )


class AsyncInstruments:
    """`/api/v1/instruments/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ContractChange], /) -> tuple[m.Contract, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "instruments/", body=bodies), tuple[m.Contract, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewContract]) -> m.Contract:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "instruments/", body=fields, key=new_key(idempotency_key)), m.Contract
        )

    async def create_many(
        self, bodies: Sequence[m.NewContract], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Contract, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "instruments/", body=bodies, key=new_key(idempotency_key)), tuple[m.Contract, ...]
        )

    def list(
        self,
        *,
        bundled: bool | None = None,
        cancellation: str | None = None,
        generation: m.Generation | None = None,
        kind: m.Kind | None = None,
        market: str | None = None,
        ordering: Literal[
            "kind",
            "-kind",
            "generation",
            "-generation",
            "valid_from",
            "-valid_from",
            "valid_to",
            "-valid_to",
            "source",
            "-source",
            "market",
            "-market",
            "cancellation",
            "-cancellation",
            "id",
            "-id",
        ]
        | None = None,
        site: str | None = None,
        source: str | None = None,
        valid_after: datetime | None = None,
        valid_before: datetime | None = None,
        vintage_year: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Contract]:
        """Returns the rows, a page at a time. What market-based emissions rest on (GHG Protocol, Scope 2).

        Args:
            cancellation: Registry and number of the cancellation (retirement) for you.
            generation: When the volume of a PPA or certificate is generated: what hourly matching goes by.
            kind: * `ppa` - power purchase agreement
            market: Market that it is from; that of the site.
            ordering: The field to order by; with a minus the largest first.
            source: Contract or certificate numbers, or the disclosure.
            valid_after: Only those after this.
            valid_before: Only those before this.
            vintage_year: Year in which the energy was generated.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "instruments/",
                {
                    "bundled": bundled,
                    "cancellation": cancellation,
                    "generation": generation,
                    "kind": kind,
                    "market": market,
                    "ordering": ordering,
                    "site": site,
                    "source": source,
                    "valid_after": valid_after,
                    "valid_before": valid_before,
                    "vintage_year": vintage_year,
                    "limit": page_size,
                },
            ),
            m.Contract,
        )

    async def validate(self, **fields: Unpack[m.NewContract]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "instruments/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewContract | m.ContractChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "instruments/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ContractChanges]) -> m.Contract:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"instruments/{key_segment(key)}/", body=fields, etag=etag), m.Contract
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"instruments/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Contract:
        """Returns one. What market-based emissions rest on (GHG Protocol, Scope 2)."""
        return await self._transport.read(Call("GET", f"instruments/{key_segment(key)}/"), m.Contract)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ContractChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"instruments/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncJobs(AsyncWaits):
    """`/api/v1/jobs/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        kind: str | None = None,
        ordering: Literal["created_at", "-created_at"] | None = None,
        state: m.JobState | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Job]:
        """Returns the rows, a page at a time. Jobs, the newest first. A single one has its parameters, log and
        result.

        Args:
            created_after: Only those after this.
            created_before: Only those before this.
            ordering: The field to order by; with a minus the largest first.
            state: * `queued` - Queued
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "jobs/",
                {
                    "created_after": created_after,
                    "created_before": created_before,
                    "kind": kind,
                    "ordering": ordering,
                    "state": state,
                    "limit": page_size,
                },
            ),
            m.Job,
        )

    async def get(self, uid: str, /) -> m.JobDetail:
        """Returns one. Jobs, the newest first. A single one has its parameters, log and result."""
        return await self._transport.read(Call("GET", f"jobs/{segment(uid)}/"), m.JobDetail)

    async def cancel(self, uid: str, /, *, idempotency_key: str | None = None) -> m.JobDetail:
        """Stops it: at once where no worker has it yet, else soon. Others' jobs need the right to operate."""
        return await self._transport.read(
            Call("POST", f"jobs/{segment(uid)}/cancel/", key=new_key(idempotency_key)), m.JobDetail
        )


class AsyncKeys:
    """`/api/v1/keys/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewApiKey]) -> m.MadeApiKey:
        """Makes a key."""
        return await self._transport.read(
            Call("POST", "keys/", body=fields, key=new_key(idempotency_key)), m.MadeApiKey
        )

    def list(
        self, *, prefix: str | None = None, tenant: str | None = None, page_size: int = PAGE_SIZE
    ) -> AsyncRows[m.ApiKey]:
        """Returns the rows, a page at a time. Tenants' keys for the gateway, the newest first; their secrets are not
        kept.

        Args:
            prefix: First characters, to tell keys apart.
        """
        return AsyncRows(
            self._transport, Call("GET", "keys/", {"prefix": prefix, "tenant": tenant, "limit": page_size}), m.ApiKey
        )

    async def change(self, id: int, /, **fields: Unpack[m.ChangedApiKeyChanges]) -> m.ApiKey:
        """Changes what it may. Gateways hear of it within seconds. 409 where it is revoked."""
        return await self._transport.read(Call("PATCH", f"keys/{segment(id)}/", body=fields), m.ApiKey)

    async def delete(self, id: int, /) -> None:
        """Revokes it: within seconds no gateway takes it any more. 409 where it was revoked already."""
        await self._transport.send(Call("DELETE", f"keys/{segment(id)}/"))

    async def get(self, id: int, /) -> m.ApiKey:
        """Returns one. Tenants' keys for the gateway, the newest first; their secrets are not kept."""
        return await self._transport.read(Call("GET", f"keys/{segment(id)}/"), m.ApiKey)


class AsyncModels:
    """`/api/v1/models/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ModelChange], /) -> tuple[m.Model, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "models/", body=bodies), tuple[m.Model, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewModel]) -> m.Model:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "models/", body=fields, key=new_key(idempotency_key)), m.Model)

    async def create_many(
        self, bodies: Sequence[m.NewModel], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Model, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "models/", body=bodies, key=new_key(idempotency_key)), tuple[m.Model, ...]
        )

    def list(
        self,
        *,
        dtype: m.Dtype | None = None,
        engine: str | None = None,
        hugging_face_id: str | None = None,
        max_model_len: int | None = None,
        name: str | None = None,
        ordering: Literal[
            "name",
            "-name",
            "hugging_face_id",
            "-hugging_face_id",
            "max_model_len",
            "-max_model_len",
            "engine",
            "-engine",
            "tokenizer",
            "-tokenizer",
            "weights",
            "-weights",
            "dtype",
            "-dtype",
            "id",
            "-id",
        ]
        | None = None,
        tokenizer: str | None = None,
        weights: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Model]:
        """Returns the rows, a page at a time. What can be served.

        Args:
            dtype: Number format that engines compute in; auto: that of the weights.
            engine: Engine parameters of the engine model.
            max_model_len: Longest prompt plus output, in tokens.
            ordering: The field to order by; with a minus the largest first.
            tokenizer: The model's tokenizer.json, a file on the gateways' machines; empty: prompts are estimated.
            weights: Folder on the nodes with the weights; empty: the Hugging Face id.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "models/",
                {
                    "dtype": dtype,
                    "engine": engine,
                    "hugging_face_id": hugging_face_id,
                    "max_model_len": max_model_len,
                    "name": name,
                    "ordering": ordering,
                    "tokenizer": tokenizer,
                    "weights": weights,
                    "limit": page_size,
                },
            ),
            m.Model,
        )

    async def validate(self, **fields: Unpack[m.NewModel]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "models/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewModel | m.ModelChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "models/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ModelChanges]) -> m.Model:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"models/{key_segment(key)}/", body=fields, etag=etag), m.Model)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"models/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Model:
        """Returns one. What can be served."""
        return await self._transport.read(Call("GET", f"models/{key_segment(key)}/"), m.Model)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ModelChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"models/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncModes:
    """`/api/v1/modes/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def preview(self, **fields: Unpack[m.Switch]) -> m.Preview:
        """Returns the power, carbon and cost now and after the switch. Nothing is changed."""
        return await self._transport.read(Call("POST", "previews/", body=fields, harmless=True), m.Preview)

    async def get(self, service: str, /) -> m.ControlMode:
        """Returns the control mode of a service's slow loops."""
        return await self._transport.read(Call("GET", f"modes/{segment(service)}/"), m.ControlMode)

    async def set(
        self, service: str, /, *, idempotency_key: str | None = None, **fields: Unpack[m.NewControlMode]
    ) -> m.ControlMode:
        """Sets it. What waits for approval is out of date where nothing is to be approved any more."""
        return await self._transport.read(
            Call("POST", f"modes/{segment(service)}/", body=fields, key=new_key(idempotency_key)), m.ControlMode
        )

    async def advice(self, service: str, /) -> m.Advice:
        """Returns both fleets now, and the turns in which the policy advised, the newest first."""
        return await self._transport.read(Call("GET", f"modes/{segment(service)}/advice/"), m.Advice)


class AsyncNodes:
    """`/api/v1/nodes/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.NodeChange], /) -> tuple[m.Node, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "nodes/", body=bodies), tuple[m.Node, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewNode]) -> m.Node:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "nodes/", body=fields, key=new_key(idempotency_key)), m.Node)

    async def create_many(
        self, bodies: Sequence[m.NewNode], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Node, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "nodes/", body=bodies, key=new_key(idempotency_key)), tuple[m.Node, ...]
        )

    def list(
        self,
        *,
        cluster: str | None = None,
        gpu_slices: int | None = None,
        name: str | None = None,
        ordering: Literal[
            "name",
            "-name",
            "gpu_slices",
            "-gpu_slices",
            "slicing",
            "-slicing",
            "power_port",
            "-power_port",
            "power_url",
            "-power_url",
            "power_mac",
            "-power_mac",
            "power_broadcast",
            "-power_broadcast",
            "id",
            "-id",
        ]
        | None = None,
        power_broadcast: str | None = None,
        power_mac: str | None = None,
        power_port: m.PowerPort | None = None,
        power_url: str | None = None,
        schedulable: bool | None = None,
        simulated: bool | None = None,
        site: str | None = None,
        slicing: m.Slicing | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Node]:
        """Returns the rows, a page at a time. A machine with GPUs and an agent. Its agent is started with the same
        name.

        Args:
            gpu_slices: So many engines share each GPU, each with an equal part of its memory and TP 1; all have
                its one clock. 1: an engine has its GPUs to itself. It can be changed while no instance lives on
                the node.
            ordering: The field to order by; with a minus the largest first.
            power_broadcast: To which the packet of wake-on-LAN goes; empty: 255.255.255.255.
            power_mac: Of the network card that wakes it, for wake-on-LAN, for example 12:34:56:78:9a:bc.
            power_port: By it plans whose knob servers is power_off switch the server off while it is not needed.
            power_url: Of its BMC's system, https://BMC/redfish/v1/Systems/ID, or of the webhook. Its password or
                secret is in a file: docs/servers.md.
            slicing: With MPS each gets its part of the threads too; the node's MPS daemon is for you to run.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "nodes/",
                {
                    "cluster": cluster,
                    "gpu_slices": gpu_slices,
                    "name": name,
                    "ordering": ordering,
                    "power_broadcast": power_broadcast,
                    "power_mac": power_mac,
                    "power_port": power_port,
                    "power_url": power_url,
                    "schedulable": schedulable,
                    "simulated": simulated,
                    "site": site,
                    "slicing": slicing,
                    "limit": page_size,
                },
            ),
            m.Node,
        )

    async def authority_retrieve(self) -> m.Authority:
        """Returns the certificate of the control plane's authority. It is no secret."""
        return await self._transport.read(Call("GET", "nodes/authority/"), m.Authority)

    async def join(self, **fields: Unpack[m.NodeOffer]) -> m.Joined:
        """Makes this machine a node. 400 says which field is wrong, a spent or unknown token included."""
        return await self._transport.read(Call("POST", "nodes/join/", body=fields), m.Joined)

    async def validate(self, **fields: Unpack[m.NewNode]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "nodes/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewNode | m.NodeChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "nodes/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.NodeChanges]) -> m.Node:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"nodes/{key_segment(key)}/", body=fields, etag=etag), m.Node)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"nodes/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Node:
        """Returns one. A machine with GPUs and an agent. Its agent is started with the same name."""
        return await self._transport.read(Call("GET", f"nodes/{key_segment(key)}/"), m.Node)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.NodeChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"nodes/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def revoke_create(self, name: str, /) -> m.Revoked:
        """Lets the node in no more, from this moment on; it may join again."""
        return await self._transport.read(Call("POST", f"nodes/{segment(name)}/revoke/"), m.Revoked)

    async def state_retrieve(self, name: str, /) -> m.NodeState:
        """Returns the state of a node as it was last reported."""
        return await self._transport.read(Call("GET", f"nodes/{segment(name)}/state/"), m.NodeState)


class AsyncOffers:
    """`/api/v1/offers/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewOffer]) -> m.Service:
        """Makes a service with its model, objectives and pools; all of it, or nothing."""
        return await self._transport.read(Call("POST", "offers/", body=fields, key=new_key(idempotency_key)), m.Service)


class AsyncOverheads:
    """`/api/v1/overheads/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(self, *, model: str | None = None) -> AsyncRows[m.Overhead]:
        """Returns how long starts and re-shards took, of the services all of whose sites you may see.

        Args:
            model: Only of the model card of this name.
        """
        return AsyncRows(self._transport, Call("GET", "overheads/", {"model": model}), m.Overhead)


class AsyncOverrides:
    """`/api/v1/overrides/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewOverride]) -> m.Override:
        """Pins a pool's workers, a clock or a partition, or drains a site, until it ends."""
        return await self._transport.read(
            Call("POST", "overrides/", body=fields, key=new_key(idempotency_key)), m.Override
        )

    def list(
        self,
        *,
        created_after: datetime | None = None,
        kind: m.OverrideKind | None = None,
        pool: int | None = None,
        service: str | None = None,
        site: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Override]:
        """Returns the rows, a page at a time. A person's word against the controllers', for a while; the newest
        first.

        Args:
            created_after: Only those after this.
            kind: * `workers` - workers of a pool
            service: The `model` that clients send.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "overrides/",
                {
                    "created_after": created_after,
                    "kind": kind,
                    "pool": pool,
                    "service": service,
                    "site": site,
                    "limit": page_size,
                },
            ),
            m.Override,
        )

    async def get(self, id: int, /) -> m.Override:
        """Returns one. A person's word against the controllers', for a while; the newest first."""
        return await self._transport.read(Call("GET", f"overrides/{segment(id)}/"), m.Override)

    async def end(self, id: int, /, *, idempotency_key: str | None = None) -> m.Override:
        """Ends it now; the loops decide anew within seconds."""
        return await self._transport.read(
            Call("POST", f"overrides/{segment(id)}/end/", key=new_key(idempotency_key)), m.Override
        )


class AsyncPartitions:
    """`/api/v1/partitions/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.PartitionChange], /) -> tuple[m.Partition, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "partitions/", body=bodies), tuple[m.Partition, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewPartition]) -> m.Partition:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "partitions/", body=fields, key=new_key(idempotency_key)), m.Partition
        )

    async def create_many(
        self, bodies: Sequence[m.NewPartition], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Partition, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "partitions/", body=bodies, key=new_key(idempotency_key)), tuple[m.Partition, ...]
        )

    def list(
        self,
        *,
        name: str | None = None,
        ordering: Literal["name", "-name", "source", "-source", "id", "-id"] | None = None,
        source: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Partition]:
        """Returns the rows, a page at a time. A way to cut requests into classes by the lengths of prompt and
        answer.

        Args:
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call("GET", "partitions/", {"name": name, "ordering": ordering, "source": source, "limit": page_size}),
            m.Partition,
        )

    async def validate(self, **fields: Unpack[m.NewPartition]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "partitions/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewPartition | m.PartitionChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "partitions/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.PartitionChanges]) -> m.Partition:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"partitions/{key_segment(key)}/", body=fields, etag=etag), m.Partition
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"partitions/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Partition:
        """Returns one. A way to cut requests into classes by the lengths of prompt and answer."""
        return await self._transport.read(Call("GET", f"partitions/{key_segment(key)}/"), m.Partition)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.PartitionChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"partitions/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncPauses:
    """`/api/v1/pauses/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewPause]) -> m.Pause:
        """Pauses a loop of a service."""
        return await self._transport.read(Call("POST", "pauses/", body=fields, key=new_key(idempotency_key)), m.Pause)

    def list(
        self,
        *,
        created_after: datetime | None = None,
        loop: m.Loop | None = None,
        service: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Pause]:
        """Returns the rows, a page at a time. Pauses of loops, the newest first. A paused loop decides nothing; what
        it set last stays.

        Args:
            created_after: Only those after this.
            loop: * `carbon` - Carbon
            service: The `model` that clients send.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET", "pauses/", {"created_after": created_after, "loop": loop, "service": service, "limit": page_size}
            ),
            m.Pause,
        )

    async def get(self, id: int, /) -> m.Pause:
        """Returns one. Pauses of loops, the newest first. A paused loop decides nothing; what it set last stays."""
        return await self._transport.read(Call("GET", f"pauses/{segment(id)}/"), m.Pause)

    async def resume(self, id: int, /, *, idempotency_key: str | None = None) -> m.Pause:
        """The loop takes its next turn. One that has ended is left as it is."""
        return await self._transport.read(
            Call("POST", f"pauses/{segment(id)}/resume/", key=new_key(idempotency_key)), m.Pause
        )


class AsyncPeriodFigures:
    """`/api/v1/period-figures/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(
        self, *, from_: datetime | None = None, service: str | None = None, to: datetime | None = None
    ) -> m.PeriodFigures:
        """Returns energy by kind, GPU time, clock, latencies and attainment of [from, to).

        Args:
            from_: A time with its offset.
            service: Whose requests; all where left out.
            to: A later one, which is no part of the period.
        """
        return await self._transport.read(
            Call("GET", "period-figures/", query={"from": from_, "service": service, "to": to}), m.PeriodFigures
        )


class AsyncPools:
    """`/api/v1/pools/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.PoolChange], /) -> tuple[m.Pool, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "pools/", body=bodies), tuple[m.Pool, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewPool]) -> m.Pool:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "pools/", body=fields, key=new_key(idempotency_key)), m.Pool)

    async def create_many(
        self, bodies: Sequence[m.NewPool], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Pool, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "pools/", body=bodies, key=new_key(idempotency_key)), tuple[m.Pool, ...]
        )

    def list(
        self,
        *,
        ordering: Literal["warm", "-warm", "id", "-id"] | None = None,
        request_class: str | None = None,
        service: str | None = None,
        site: str | None = None,
        warm: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Pool]:
        """Returns the rows, a page at a time. Where a service may run: with the first pool at a site it gets one
        there for each class.

        Args:
            ordering: The field to order by; with a minus the largest first.
            service: The `model` that clients send.
            warm: Engines kept warm beside those that are wanted: asleep, or loaded, without requests.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "pools/",
                {
                    "ordering": ordering,
                    "request_class": request_class,
                    "service": service,
                    "site": site,
                    "warm": warm,
                    "limit": page_size,
                },
            ),
            m.Pool,
        )

    async def validate(self, **fields: Unpack[m.NewPool]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "pools/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewPool | m.PoolChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "pools/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.PoolChanges]) -> m.Pool:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"pools/{key_segment(key)}/", body=fields, etag=etag), m.Pool)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"pools/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Pool:
        """Returns one. Where a service may run: with the first pool at a site it gets one there for each class."""
        return await self._transport.read(Call("GET", f"pools/{key_segment(key)}/"), m.Pool)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.PoolChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"pools/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncProfiles:
    """`/api/v1/profiles/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ProfileChange], /) -> tuple[m.Profile, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "profiles/", body=bodies), tuple[m.Profile, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewProfile]) -> m.Profile:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "profiles/", body=fields, key=new_key(idempotency_key)), m.Profile
        )

    async def create_many(
        self, bodies: Sequence[m.NewProfile], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Profile, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "profiles/", body=bodies, key=new_key(idempotency_key)), tuple[m.Profile, ...]
        )

    def list(
        self,
        *,
        gpu_type: str | None = None,
        kind: m.Source | None = None,
        model_card: str | None = None,
        note: str | None = None,
        ordering: Literal[
            "gpu_type",
            "-gpu_type",
            "tp",
            "-tp",
            "max_rps",
            "-max_rps",
            "power_w",
            "-power_w",
            "kind",
            "-kind",
            "source",
            "-source",
            "note",
            "-note",
            "id",
            "-id",
        ]
        | None = None,
        request_class: str | None = None,
        source: str | None = None,
        tp: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Profile]:
        """Returns the rows, a page at a time. What one instance of a mode does for one class.

        Args:
            kind: * `measured` - Measured
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "profiles/",
                {
                    "gpu_type": gpu_type,
                    "kind": kind,
                    "model_card": model_card,
                    "note": note,
                    "ordering": ordering,
                    "request_class": request_class,
                    "source": source,
                    "tp": tp,
                    "limit": page_size,
                },
            ),
            m.Profile,
        )

    async def validate(self, **fields: Unpack[m.NewProfile]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "profiles/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewProfile | m.ProfileChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "profiles/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ProfileChanges]) -> m.Profile:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"profiles/{key_segment(key)}/", body=fields, etag=etag), m.Profile
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"profiles/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Profile:
        """Returns one. What one instance of a mode does for one class."""
        return await self._transport.read(Call("GET", f"profiles/{key_segment(key)}/"), m.Profile)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ProfileChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"profiles/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncPues:
    """`/api/v1/pues/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.PueChange], /) -> tuple[m.Pue, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "pues/", body=bodies), tuple[m.Pue, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewPue]) -> m.Pue:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "pues/", body=fields, key=new_key(idempotency_key)), m.Pue)

    async def create_many(
        self, bodies: Sequence[m.NewPue], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Pue, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "pues/", body=bodies, key=new_key(idempotency_key)), tuple[m.Pue, ...]
        )

    def list(
        self,
        *,
        ordering: Literal[
            "value", "-value", "valid_from", "-valid_from", "source", "-source", "version", "-version", "id", "-id"
        ]
        | None = None,
        site: str | None = None,
        source: str | None = None,
        valid_after: datetime | None = None,
        valid_before: datetime | None = None,
        version: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Pue]:
        """Returns the rows, a page at a time. Power usage effectiveness; without one the site's own field counts.

        Args:
            ordering: The field to order by; with a minus the largest first.
            source: Where the figure is from: shown beside what it is used for.
            valid_after: Only those after this. From when it holds.
            valid_before: Only those before this. From when it holds.
            version: The source's own version or date.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "pues/",
                {
                    "ordering": ordering,
                    "site": site,
                    "source": source,
                    "valid_after": valid_after,
                    "valid_before": valid_before,
                    "version": version,
                    "limit": page_size,
                },
            ),
            m.Pue,
        )

    async def validate(self, **fields: Unpack[m.NewPue]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "pues/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewPue | m.PueChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "pues/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.PueChanges]) -> m.Pue:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"pues/{key_segment(key)}/", body=fields, etag=etag), m.Pue)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"pues/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Pue:
        """Returns one. Power usage effectiveness; without one the site's own field counts."""
        return await self._transport.read(Call("GET", f"pues/{key_segment(key)}/"), m.Pue)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.PueChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"pues/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncReportSchedules:
    """`/api/v1/report-schedules/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ReportScheduleChange], /) -> tuple[m.ReportSchedule, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "report-schedules/", body=bodies), tuple[m.ReportSchedule, ...])

    async def create(
        self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewReportSchedule]
    ) -> m.ReportSchedule:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "report-schedules/", body=fields, key=new_key(idempotency_key)), m.ReportSchedule
        )

    async def create_many(
        self, bodies: Sequence[m.NewReportSchedule], /, *, idempotency_key: str | None = None
    ) -> tuple[m.ReportSchedule, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "report-schedules/", body=bodies, key=new_key(idempotency_key)), tuple[m.ReportSchedule, ...]
        )

    def list(
        self,
        *,
        cadence: m.Cadence | None = None,
        enabled: bool | None = None,
        name: str | None = None,
        ordering: Literal["name", "-name", "cadence", "-cadence", "id", "-id"] | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.ReportSchedule]:
        """Returns the rows, a page at a time. A report that is made by itself when a week or month is over and
        settled.

        Args:
            cadence: * `weekly` - Weekly
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "report-schedules/",
                {"cadence": cadence, "enabled": enabled, "name": name, "ordering": ordering, "limit": page_size},
            ),
            m.ReportSchedule,
        )

    async def validate(self, **fields: Unpack[m.NewReportSchedule]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "report-schedules/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewReportSchedule | m.ReportScheduleChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "report-schedules/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(
        self, key: str | int, /, *, etag: str, **fields: Unpack[m.ReportScheduleChanges]
    ) -> m.ReportSchedule:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"report-schedules/{key_segment(key)}/", body=fields, etag=etag), m.ReportSchedule
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"report-schedules/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.ReportSchedule:
        """Returns one. A report that is made by itself when a week or month is over and settled."""
        return await self._transport.read(Call("GET", f"report-schedules/{key_segment(key)}/"), m.ReportSchedule)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ReportScheduleChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"report-schedules/{key_segment(key)}/validate/", body=fields, harmless=True),
            m.ValidationResult,
        )


class AsyncReports:
    """`/api/v1/reports/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewReport]) -> m.ReportDetail:
        """Asks for a report. 202: a worker makes it; look at it where Location says, or at its `job`."""
        return await self._transport.read(
            Call("POST", "reports/", body=fields, key=new_key(idempotency_key)), m.ReportDetail
        )

    def list(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        state: m.JobState | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Report]:
        """Returns the rows, a page at a time. Reports of energy, carbon and cost, the newest first. One is made by a
        worker; its state is its job's.

        Args:
            created_after: Only those after this.
            created_before: Only those before this.
            state: * `queued` - Queued
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "reports/",
                {"created_after": created_after, "created_before": created_before, "state": state, "limit": page_size},
            ),
            m.Report,
        )

    async def get(self, id: int, /) -> m.ReportDetail:
        """Returns one. Reports of energy, carbon and cost, the newest first. One is made by a worker; its state is
        its job's.
        """
        return await self._transport.read(Call("GET", f"reports/{segment(id)}/"), m.ReportDetail)

    async def cancel(self, id: int, /, *, idempotency_key: str | None = None) -> m.ReportDetail:
        """Stops one that is not finished; 409 for one that is."""
        return await self._transport.read(
            Call("POST", f"reports/{segment(id)}/cancel/", key=new_key(idempotency_key)), m.ReportDetail
        )

    async def sign(self, id: int, /, *, idempotency_key: str | None = None) -> m.ReportDetail:
        """Notes who has checked it, once. 409 where it is signed, or not finished."""
        return await self._transport.read(
            Call("POST", f"reports/{segment(id)}/sign/", key=new_key(idempotency_key)), m.ReportDetail
        )

    async def file(self, id: int, kind: str, /) -> bytes:
        """Returns the bytes of one file, as they were when the report was made."""
        answer = await self._transport.send(Call("GET", f"reports/{segment(id)}/files/{segment(kind)}/", accept="*/*"))
        return answer.content


class AsyncRequests:
    """`/api/v1/requests/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        adapter: str | None = None,
        instance_uid: UUID | str | None = None,
        pool: int | None = None,
        prediction_source: str | None = None,
        request_class: str | None = None,
        request_id: str | None = None,
        service: str | None = None,
        site: str | None = None,
        slo_met: bool | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        status: m.RequestStatus | None = None,
        tenant: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Request]:
        """Returns the rows, a page at a time. Requests that clients made, the newest first. A list only: records are
        kept by time, and to find one by its id alone every day would have to be read.

        Args:
            adapter: The LoRA adapter that it asked for; none: the service's model itself.
            prediction_source: What the output tokens were predicted by: text, memory, encoder, cache, boosted,
                history, prior; or bound: the request may not have as many as were expected.
            started_after: Only those after this.
            started_before: Only those before this.
            status: * `ok` - Ok
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "requests/",
                {
                    "adapter": adapter,
                    "instance_uid": instance_uid,
                    "pool": pool,
                    "prediction_source": prediction_source,
                    "request_class": request_class,
                    "request_id": request_id,
                    "service": service,
                    "site": site,
                    "slo_met": slo_met,
                    "started_after": started_after,
                    "started_before": started_before,
                    "status": status,
                    "tenant": tenant,
                    "limit": page_size,
                },
            ),
            m.Request,
        )

    async def use(self, request_id: str, /, *, started_at: datetime) -> m.RequestUse:
        """Returns a request's energy, carbon and cost: its share of the meters, settled some minutes after its end.
        Carbon and cost are at the mean of its tenant, service and pool over each five minutes; null where a part
        of it is not known. 404 where not even a prediction is on record.

        Args:
            started_at: `started_at` of the request's row.
        """
        return await self._transport.read(
            Call("GET", f"requests/{segment(request_id)}/use/", query={"started_at": started_at}), m.RequestUse
        )


class AsyncScenario:
    """`/api/v1/scenario/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(
        self,
        *,
        base: str | None = None,
        from_: datetime | None = None,
        service: str | None = None,
        to: datetime | None = None,
    ) -> bytes:
        """Returns a zip: scenario.yaml and the CSVs that it names; with `from` and `to` the requests of then.

        Args:
            base: fleet (default), a preset's name, or study:ID.
            from_: A time with its offset.
            service: Whose requests; all where left out.
            to: A later one, which is no part of the period.
        """
        answer = await self._transport.send(
            Call("GET", "scenario/", query={"base": base, "from": from_, "service": service, "to": to}, accept="*/*")
        )
        return answer.content


class AsyncSeries:
    """`/api/v1/series/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def get(
        self,
        name: Literal["carbon", "carbon_rate", "energy", "gpu", "intensity", "jain", "power", "slo"],
        /,
        *,
        from_: datetime | None = None,
        gpu: str | None = None,
        method: Literal["lttb", "mean", "minmax", "sum"] | None = None,
        points: int | None = None,
        service: str | None = None,
        site: str | None = None,
        step: int | None = None,
        to: datetime | None = None,
    ) -> m.Series:
        """Returns buckets of `step` seconds, or thinned to `points`, with unit and source; null or none is a gap.

        Args:
            from_: The start; an hour before the end where it is left out.
            gpu: The GPU's uuid (gpu).
            method: How: means of buckets, or what lttb or minmax choose. Energy and carbon are sums of buckets,
                always.
            points: At most about so many a line.
            service: Only this service (slo; of jain the classes).
            site: Only this site.
            step: Length of a bucket in seconds: multiples of 10.
            to: The end; now where it is left out.
        """
        return await self._transport.read(
            Call(
                "GET",
                f"series/{segment(name)}/",
                query={
                    "from": from_,
                    "gpu": gpu,
                    "method": method,
                    "points": points,
                    "service": service,
                    "site": site,
                    "step": step,
                    "to": to,
                },
            ),
            m.Series,
        )

    async def csv(
        self,
        name: Literal["carbon", "carbon_rate", "energy", "gpu", "intensity", "jain", "power", "slo"],
        /,
        *,
        from_: datetime | None = None,
        gpu: str | None = None,
        method: Literal["lttb", "mean", "minmax", "sum"] | None = None,
        points: int | None = None,
        service: str | None = None,
        site: str | None = None,
        step: int | None = None,
        to: datetime | None = None,
    ) -> str:
        """Returns buckets of `step` seconds, or thinned to `points`, with unit and source; null or none is a gap. As
        text/csv.

        Args:
            from_: The start; an hour before the end where it is left out.
            gpu: The GPU's uuid (gpu).
            method: How: means of buckets, or what lttb or minmax choose. Energy and carbon are sums of buckets,
                always.
            points: At most about so many a line.
            service: Only this service (slo; of jain the classes).
            site: Only this site.
            step: Length of a bucket in seconds: multiples of 10.
            to: The end; now where it is left out.
        """
        answer = await self._transport.send(
            Call(
                "GET",
                f"series/{segment(name)}/",
                query={
                    "from": from_,
                    "gpu": gpu,
                    "method": method,
                    "points": points,
                    "service": service,
                    "site": site,
                    "step": step,
                    "to": to,
                },
                accept="text/csv",
            )
        )
        return answer.content.decode()

    async def arrow(
        self,
        name: Literal["carbon", "carbon_rate", "energy", "gpu", "intensity", "jain", "power", "slo"],
        /,
        *,
        from_: datetime | None = None,
        gpu: str | None = None,
        method: Literal["lttb", "mean", "minmax", "sum"] | None = None,
        points: int | None = None,
        service: str | None = None,
        site: str | None = None,
        step: int | None = None,
        to: datetime | None = None,
    ) -> bytes:
        """Returns buckets of `step` seconds, or thinned to `points`, with unit and source; null or none is a gap. As
        application/vnd.apache.arrow.stream.

        Args:
            from_: The start; an hour before the end where it is left out.
            gpu: The GPU's uuid (gpu).
            method: How: means of buckets, or what lttb or minmax choose. Energy and carbon are sums of buckets,
                always.
            points: At most about so many a line.
            service: Only this service (slo; of jain the classes).
            site: Only this site.
            step: Length of a bucket in seconds: multiples of 10.
            to: The end; now where it is left out.
        """
        answer = await self._transport.send(
            Call(
                "GET",
                f"series/{segment(name)}/",
                query={
                    "from": from_,
                    "gpu": gpu,
                    "method": method,
                    "points": points,
                    "service": service,
                    "site": site,
                    "step": step,
                    "to": to,
                },
                accept="application/vnd.apache.arrow.stream",
            )
        )
        return answer.content


class AsyncServices:
    """`/api/v1/services/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.ServiceChange], /) -> tuple[m.Service, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "services/", body=bodies), tuple[m.Service, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewService]) -> m.Service:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "services/", body=fields, key=new_key(idempotency_key)), m.Service
        )

    async def create_many(
        self, bodies: Sequence[m.NewService], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Service, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "services/", body=bodies, key=new_key(idempotency_key)), tuple[m.Service, ...]
        )

    def list(
        self,
        *,
        description: str | None = None,
        expected_output_tokens: int | None = None,
        expected_prompt_tokens: int | None = None,
        max_gpus: int | None = None,
        max_loras: int | None = None,
        min_gpus: int | None = None,
        model_card: str | None = None,
        name: str | None = None,
        ordering: Literal[
            "name",
            "-name",
            "description",
            "-description",
            "weight",
            "-weight",
            "min_gpus",
            "-min_gpus",
            "max_loras",
            "-max_loras",
            "policy",
            "-policy",
            "id",
            "-id",
        ]
        | None = None,
        partition: str | None = None,
        policy: m.Policy | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Service]:
        """Returns the rows, a page at a time. A model offered to clients under a name, with objectives and a policy.

        Args:
            expected_output_tokens: Mean length of answers.
            expected_prompt_tokens: Mean length of prompts.
            max_gpus: It never has more, not even where GPUs are free. Empty: there is no limit.
            max_loras: LoRA adapters that an engine has loaded at once; for another one the least recently used
                goes.
            min_gpus: It has as many, where it needs them, before others get more than an instance for each class.
                What it does not need, others may use.
            name: The `model` that clients send.
            ordering: The field to order by; with a minus the largest first.
            policy: A preset: the policy of a paper, or GreenServe's own.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "services/",
                {
                    "description": description,
                    "expected_output_tokens": expected_output_tokens,
                    "expected_prompt_tokens": expected_prompt_tokens,
                    "max_gpus": max_gpus,
                    "max_loras": max_loras,
                    "min_gpus": min_gpus,
                    "model_card": model_card,
                    "name": name,
                    "ordering": ordering,
                    "partition": partition,
                    "policy": policy,
                    "limit": page_size,
                },
            ),
            m.Service,
        )

    async def validate(self, **fields: Unpack[m.NewService]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "services/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewService | m.ServiceChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "services/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.ServiceChanges]) -> m.Service:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"services/{key_segment(key)}/", body=fields, etag=etag), m.Service
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"services/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Service:
        """Returns one. A model offered to clients under a name, with objectives and a policy."""
        return await self._transport.read(Call("GET", f"services/{key_segment(key)}/"), m.Service)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.ServiceChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"services/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncShippedGpuTypes:
    """`/api/v1/shipped-gpu-types/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(self) -> AsyncRows[m.ShippedGpuType]:
        """Returns what plans know of GPUs without anybody's entry; none of it can be changed."""
        return AsyncRows(self._transport, Call("GET", "shipped-gpu-types/"), m.ShippedGpuType)


class AsyncSites:
    """`/api/v1/sites/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.SiteChange], /) -> tuple[m.Site, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "sites/", body=bodies), tuple[m.Site, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewSite]) -> m.Site:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "sites/", body=fields, key=new_key(idempotency_key)), m.Site)

    async def create_many(
        self, bodies: Sequence[m.NewSite], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Site, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "sites/", body=bodies, key=new_key(idempotency_key)), tuple[m.Site, ...]
        )

    def list(
        self,
        *,
        currency: str | None = None,
        grid_zone: str | None = None,
        label: str | None = None,
        market: str | None = None,
        name: str | None = None,
        ordering: Literal[
            "name",
            "-name",
            "label",
            "-label",
            "rank",
            "-rank",
            "grid_zone",
            "-grid_zone",
            "market",
            "-market",
            "time_zone",
            "-time_zone",
            "currency",
            "-currency",
            "pue",
            "-pue",
            "id",
            "-id",
        ]
        | None = None,
        rank: int | None = None,
        time_zone: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Site]:
        """Returns the rows, a page at a time. A data centre: one zone of the grid, one PUE, one currency.

        Args:
            grid_zone: The carbon feeds' name of the grid zone, for example DE.
            label: Name shown to people, for example Ashburn.
            market: Market that its contracts for electricity must be from, for example AIB; empty: not declared.
            ordering: The field to order by; with a minus the largest first.
            rank: Order on pages.
            time_zone: IANA name, for example Europe/Berlin.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "sites/",
                {
                    "currency": currency,
                    "grid_zone": grid_zone,
                    "label": label,
                    "market": market,
                    "name": name,
                    "ordering": ordering,
                    "rank": rank,
                    "time_zone": time_zone,
                    "limit": page_size,
                },
            ),
            m.Site,
        )

    async def validate(self, **fields: Unpack[m.NewSite]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "sites/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewSite | m.SiteChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "sites/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.SiteChanges]) -> m.Site:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"sites/{key_segment(key)}/", body=fields, etag=etag), m.Site)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"sites/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Site:
        """Returns one. A data centre: one zone of the grid, one PUE, one currency."""
        return await self._transport.read(Call("GET", f"sites/{key_segment(key)}/"), m.Site)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.SiteChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"sites/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncSlos:
    """`/api/v1/slos/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.SloChange], /) -> tuple[m.Slo, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "slos/", body=bodies), tuple[m.Slo, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewSlo]) -> m.Slo:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "slos/", body=fields, key=new_key(idempotency_key)), m.Slo)

    async def create_many(
        self, bodies: Sequence[m.NewSlo], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Slo, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "slos/", body=bodies, key=new_key(idempotency_key)), tuple[m.Slo, ...]
        )

    def list(
        self,
        *,
        kind: m.SloKind | None = None,
        ordering: Literal["kind", "-kind", "objective_s", "-objective_s", "percentile", "-percentile", "id", "-id"]
        | None = None,
        service: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Slo]:
        """Returns the rows, a page at a time. So many of 100 requests within so many seconds.

        Args:
            kind: * `ttft` - TTFT
            ordering: The field to order by; with a minus the largest first.
            service: The `model` that clients send.
        """
        return AsyncRows(
            self._transport,
            Call("GET", "slos/", {"kind": kind, "ordering": ordering, "service": service, "limit": page_size}),
            m.Slo,
        )

    async def validate(self, **fields: Unpack[m.NewSlo]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "slos/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewSlo | m.SloChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "slos/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.SloChanges]) -> m.Slo:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(Call("PATCH", f"slos/{key_segment(key)}/", body=fields, etag=etag), m.Slo)

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"slos/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Slo:
        """Returns one. So many of 100 requests within so many seconds."""
        return await self._transport.read(Call("GET", f"slos/{key_segment(key)}/"), m.Slo)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.SloChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"slos/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncStudies:
    """`/api/v1/studies/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewStudy]) -> m.StudyDetail:
        """Asks for a study. 202: a worker runs it; look at it where Location says, or at its `job`. With a trace of
        one's own as multipart/form-data: `study` is the JSON object, `trace` the file.
        """
        return await self._transport.read(
            Call("POST", "studies/", body=fields, key=new_key(idempotency_key)), m.StudyDetail
        )

    async def create_with_trace(
        self, trace: bytes, /, *, idempotency_key: str | None = None, **fields: Unpack[m.NewStudy]
    ) -> m.StudyDetail:
        """Asks for a study. 202: a worker runs it; look at it where Location says, or at its `job`. With a trace of
        one's own as multipart/form-data: `study` is the JSON object, `trace` the file.
        """
        return await self._transport.read(
            Call("POST", "studies/", body=Upload({"study": fields}, "trace", trace), key=new_key(idempotency_key)),
            m.StudyDetail,
        )

    def list(
        self,
        *,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        state: m.JobState | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Study]:
        """Returns the rows, a page at a time. Studies, the newest first. A worker runs one after the other; how far
        each is its job and its runs say.

        Args:
            created_after: Only those after this.
            created_before: Only those before this.
            state: * `queued` - Queued
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "studies/",
                {"created_after": created_after, "created_before": created_before, "state": state, "limit": page_size},
            ),
            m.Study,
        )

    async def get(self, id: int, /) -> m.StudyDetail:
        """Returns one. Studies, the newest first. A worker runs one after the other; how far each is its job and its
        runs say.
        """
        return await self._transport.read(Call("GET", f"studies/{segment(id)}/"), m.StudyDetail)

    async def cancel(self, id: int, /, *, idempotency_key: str | None = None) -> m.StudyDetail:
        """Stops one that is not finished; 409 for one that is."""
        return await self._transport.read(
            Call("POST", f"studies/{segment(id)}/cancel/", key=new_key(idempotency_key)), m.StudyDetail
        )

    async def apply(
        self, id: int, index: str, /, *, idempotency_key: str | None = None, **fields: Unpack[m.ApplyStudy]
    ) -> m.AppliedStudy:
        """Gives a service the policy of a run; with `advise` its decisions are at first only shown."""
        return await self._transport.read(
            Call(
                "POST", f"studies/{segment(id)}/runs/{segment(index)}/apply/", body=fields, key=new_key(idempotency_key)
            ),
            m.AppliedStudy,
        )


class AsyncSyntheticHistory:
    """`/api/v1/synthetic-history/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        end_after: datetime | None = None,
        ordering: Literal["start_at", "-start_at", "end_at", "-end_at"] | None = None,
        start_before: datetime | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.SyntheticHistory]:
        """Returns the rows, a page at a time. Spans of time whose figures a model made up: the demo's history. Empty
        in any other fleet.

        Args:
            end_after: Only those after this.
            ordering: The field to order by; with a minus the largest first.
            start_before: Only those before this.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "synthetic-history/",
                {"end_after": end_after, "ordering": ordering, "start_before": start_before, "limit": page_size},
            ),
            m.SyntheticHistory,
        )

    async def get(self, id: int, /) -> m.SyntheticHistory:
        """Returns one. Spans of time whose figures a model made up: the demo's history. Empty in any other fleet."""
        return await self._transport.read(Call("GET", f"synthetic-history/{segment(id)}/"), m.SyntheticHistory)


class AsyncTariffs:
    """`/api/v1/tariffs/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.TariffChange], /) -> tuple[m.Tariff, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "tariffs/", body=bodies), tuple[m.Tariff, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewTariff]) -> m.Tariff:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "tariffs/", body=fields, key=new_key(idempotency_key)), m.Tariff)

    async def create_many(
        self, bodies: Sequence[m.NewTariff], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Tariff, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "tariffs/", body=bodies, key=new_key(idempotency_key)), tuple[m.Tariff, ...]
        )

    def list(
        self,
        *,
        currency: str | None = None,
        ordering: Literal[
            "currency",
            "-currency",
            "price_per_kwh",
            "-price_per_kwh",
            "demand_per_kw",
            "-demand_per_kw",
            "valid_from",
            "-valid_from",
            "source",
            "-source",
            "version",
            "-version",
            "id",
            "-id",
        ]
        | None = None,
        site: str | None = None,
        source: str | None = None,
        valid_after: datetime | None = None,
        valid_before: datetime | None = None,
        version: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Tariff]:
        """Returns the rows, a page at a time. What a site pays for electricity, in its local time.

        Args:
            ordering: The field to order by; with a minus the largest first.
            source: Where the figure is from: shown beside what it is used for.
            valid_after: Only those after this. From when it holds.
            valid_before: Only those before this. From when it holds.
            version: The source's own version or date.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "tariffs/",
                {
                    "currency": currency,
                    "ordering": ordering,
                    "site": site,
                    "source": source,
                    "valid_after": valid_after,
                    "valid_before": valid_before,
                    "version": version,
                    "limit": page_size,
                },
            ),
            m.Tariff,
        )

    async def validate(self, **fields: Unpack[m.NewTariff]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "tariffs/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewTariff | m.TariffChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "tariffs/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.TariffChanges]) -> m.Tariff:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"tariffs/{key_segment(key)}/", body=fields, etag=etag), m.Tariff
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"tariffs/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Tariff:
        """Returns one. What a site pays for electricity, in its local time."""
        return await self._transport.read(Call("GET", f"tariffs/{key_segment(key)}/"), m.Tariff)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.TariffChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"tariffs/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncTenants:
    """`/api/v1/tenants/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.TenantChange], /) -> tuple[m.Tenant, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "tenants/", body=bodies), tuple[m.Tenant, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewTenant]) -> m.Tenant:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(Call("POST", "tenants/", body=fields, key=new_key(idempotency_key)), m.Tenant)

    async def create_many(
        self, bodies: Sequence[m.NewTenant], /, *, idempotency_key: str | None = None
    ) -> tuple[m.Tenant, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "tenants/", body=bodies, key=new_key(idempotency_key)), tuple[m.Tenant, ...]
        )

    def list(
        self,
        *,
        concurrent_requests: int | None = None,
        label: str | None = None,
        name: str | None = None,
        ordering: Literal["name", "-name", "label", "-label", "id", "-id"] | None = None,
        requests_per_minute: int | None = None,
        shares_prefixes: bool | None = None,
        tokens_per_minute: int | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Tenant]:
        """Returns the rows, a page at a time. Who calls, and how much; their keys are under Keys.

        Args:
            concurrent_requests: Requests at a time; empty: no limit.
            ordering: The field to order by; with a minus the largest first.
            requests_per_minute: Requests a minute; empty: no limit.
            tokens_per_minute: Tokens a minute, of prompts and answers; empty: no limit.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "tenants/",
                {
                    "concurrent_requests": concurrent_requests,
                    "label": label,
                    "name": name,
                    "ordering": ordering,
                    "requests_per_minute": requests_per_minute,
                    "shares_prefixes": shares_prefixes,
                    "tokens_per_minute": tokens_per_minute,
                    "limit": page_size,
                },
            ),
            m.Tenant,
        )

    async def validate(self, **fields: Unpack[m.NewTenant]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "tenants/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(self, bodies: Sequence[m.NewTenant | m.TenantChange], /) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "tenants/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.TenantChanges]) -> m.Tenant:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"tenants/{key_segment(key)}/", body=fields, etag=etag), m.Tenant
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"tenants/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.Tenant:
        """Returns one. Who calls, and how much; their keys are under Keys."""
        return await self._transport.read(Call("GET", f"tenants/{key_segment(key)}/"), m.Tenant)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.TenantChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"tenants/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def bill(
        self, name: str, /, *, basis: m.TenantBillBasis | None = None, month: str | None = None
    ) -> m.TenantBill:
        """Returns a tenant's part of a month's fully loaded bill: the same to the digit as the report's.

        Args:
            basis: usage where left out.
            month: Such as 2026-10; this month where left out.
        """
        return await self._transport.read(
            Call("GET", f"tenants/{segment(name)}/bill/", query={"basis": basis, "month": month}), m.TenantBill
        )

    async def use(
        self,
        name: str,
        /,
        *,
        adapter: str | None = None,
        by: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
    ) -> m.TenantUse:
        """Returns a tenant's energy, carbon and cost: the same to the digit as a report's of the same hours.

        Args:
            adapter: Only of requests that asked for this LoRA adapter.
            by: Groups, with commas between: site, service, adapter, day.
            from_: A whole hour in UTC; the month's first where left out.
            to: A whole hour; the end of this one where left out.
        """
        return await self._transport.read(
            Call("GET", f"tenants/{segment(name)}/use/", query={"adapter": adapter, "by": by, "from": from_, "to": to}),
            m.TenantUse,
        )


class AsyncTrials:
    """`/api/v1/trials/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewTrial]) -> m.TrialDetail:
        """Plans a trial: beat begins it, switches the policies and ends it."""
        return await self._transport.read(
            Call("POST", "trials/", body=fields, key=new_key(idempotency_key)), m.TrialDetail
        )

    def list(
        self,
        *,
        created_after: datetime | None = None,
        service: str | None = None,
        state: m.TrialState | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Trial]:
        """Returns the rows, a page at a time. Trials, the newest first. They are for who may see all sites of their
        services.

        Args:
            created_after: Only those after this.
            service: The `model` that clients send.
            state: * `planned` - Planned
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "trials/",
                {"created_after": created_after, "service": service, "state": state, "limit": page_size},
            ),
            m.Trial,
        )

    async def get(self, id: int, /) -> m.TrialDetail:
        """Returns one. Trials, the newest first. They are for who may see all sites of their services."""
        return await self._transport.read(Call("GET", f"trials/{segment(id)}/"), m.TrialDetail)

    async def baseline(self, id: int, /, *, idempotency_key: str | None = None) -> m.TrialDetail:
        """Asks what single_pool would have used for the same requests. 202: a worker models it; see `baseline.job`."""
        return await self._transport.read(
            Call("POST", f"trials/{segment(id)}/baseline/", key=new_key(idempotency_key)), m.TrialDetail
        )

    async def cancel(
        self, id: int, /, *, idempotency_key: str | None = None, **fields: Unpack[m.CancelTrial]
    ) -> m.TrialDetail:
        """Ends it early: the service gets its policy of before. One that is over is left as it is."""
        return await self._transport.read(
            Call("POST", f"trials/{segment(id)}/cancel/", body=fields, key=new_key(idempotency_key)), m.TrialDetail
        )


class AsyncWeatherFeeds:
    """`/api/v1/weather-feeds/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def change_many(self, bodies: Sequence[m.WeatherFeedChange], /) -> tuple[m.WeatherFeed, ...]:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        return await self._transport.read(Call("PATCH", "weather-feeds/", body=bodies), tuple[m.WeatherFeed, ...])

    async def create(self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewWeatherFeed]) -> m.WeatherFeed:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "weather-feeds/", body=fields, key=new_key(idempotency_key)), m.WeatherFeed
        )

    async def create_many(
        self, bodies: Sequence[m.NewWeatherFeed], /, *, idempotency_key: str | None = None
    ) -> tuple[m.WeatherFeed, ...]:
        """Makes one, or each of a list: all or none."""
        return await self._transport.read(
            Call("POST", "weather-feeds/", body=bodies, key=new_key(idempotency_key)), tuple[m.WeatherFeed, ...]
        )

    def list(
        self,
        *,
        ordering: Literal["provider", "-provider", "source", "-source", "id", "-id"] | None = None,
        provider: str | None = None,
        site: str | None = None,
        source: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.WeatherFeed]:
        """Returns the rows, a page at a time. A provider of a site's weather, for forecasts of its carbon. Without
        one nobody is asked.

        Args:
            ordering: The field to order by; with a minus the largest first.
            provider: open_meteo, or weather_csv for a file.
            source: Whose data it is, shown beside it.
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "weather-feeds/",
                {"ordering": ordering, "provider": provider, "site": site, "source": source, "limit": page_size},
            ),
            m.WeatherFeed,
        )

    async def validate(self, **fields: Unpack[m.NewWeatherFeed]) -> m.ValidationResult:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "weather-feeds/validate/", body=fields, harmless=True), m.ValidationResult
        )

    async def validate_many(
        self, bodies: Sequence[m.NewWeatherFeed | m.WeatherFeedChange], /
    ) -> tuple[m.ValidationResult, ...]:
        """Returns the consequences of making this; nothing is stored. Of a list each is tried after those before it:
        with `id` it is changed so, without it is made. The answer is a list of results in its order.
        """
        return await self._transport.read(
            Call("POST", "weather-feeds/validate/", body=bodies, harmless=True), tuple[m.ValidationResult, ...]
        )

    async def change(self, key: str | int, /, *, etag: str, **fields: Unpack[m.WeatherFeedChanges]) -> m.WeatherFeed:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        return await self._transport.read(
            Call("PATCH", f"weather-feeds/{key_segment(key)}/", body=fields, etag=etag), m.WeatherFeed
        )

    async def delete(self, key: str | int, /, *, etag: str) -> None:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        await self._transport.send(Call("DELETE", f"weather-feeds/{key_segment(key)}/", etag=etag))

    async def get(self, key: str | int, /) -> m.WeatherFeed:
        """Returns one. A provider of a site's weather, for forecasts of its carbon. Without one nobody is asked."""
        return await self._transport.read(Call("GET", f"weather-feeds/{key_segment(key)}/"), m.WeatherFeed)

    async def validate_change(self, key: str | int, /, **fields: Unpack[m.WeatherFeedChanges]) -> m.ValidationResult:
        """Returns the consequences of changing it in this way; nothing is stored."""
        return await self._transport.read(
            Call("POST", f"weather-feeds/{key_segment(key)}/validate/", body=fields, harmless=True), m.ValidationResult
        )


class AsyncWebhookDeliveries:
    """`/api/v1/webhook-deliveries/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        event: str | None = None,
        state: m.DeliveryState | None = None,
        subscription: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Delivery]:
        """Returns the rows, a page at a time. Deliveries of events with their outcome, the newest first; they are
        kept for 30 days.

        Args:
            state: * `pending` - Pending
        """
        return AsyncRows(
            self._transport,
            Call(
                "GET",
                "webhook-deliveries/",
                {"event": event, "state": state, "subscription": subscription, "limit": page_size},
            ),
            m.Delivery,
        )

    async def get(self, uid: str, /) -> m.Delivery:
        """Returns one. Deliveries of events with their outcome, the newest first; they are kept for 30 days."""
        return await self._transport.read(Call("GET", f"webhook-deliveries/{segment(uid)}/"), m.Delivery)

    async def again(self, uid: str, /, *, idempotency_key: str | None = None) -> m.Delivery:
        """Tries one again that was given up; 409 for others."""
        return await self._transport.read(
            Call("POST", f"webhook-deliveries/{segment(uid)}/again/", key=new_key(idempotency_key)), m.Delivery
        )


class AsyncWebhooks:
    """`/api/v1/webhooks/`"""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self, *, idempotency_key: str | None = None, **fields: Unpack[m.NewSubscription]
    ) -> m.MadeSubscription:
        """Subscribes. The address must be https and public."""
        return await self._transport.read(
            Call("POST", "webhooks/", body=fields, key=new_key(idempotency_key)), m.MadeSubscription
        )

    def list(
        self,
        *,
        enabled: bool | None = None,
        name: str | None = None,
        ordering: Literal["name", "-name", "created_at", "-created_at"] | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncRows[m.Subscription]:
        """Returns the rows, a page at a time. Subscribers to events. Each message is signed with the subscription's
        secret (docs/api.md).

        Args:
            ordering: The field to order by; with a minus the largest first.
        """
        return AsyncRows(
            self._transport,
            Call("GET", "webhooks/", {"enabled": enabled, "name": name, "ordering": ordering, "limit": page_size}),
            m.Subscription,
        )

    async def change(self, id: int, /, *, etag: str, **fields: Unpack[m.SubscriptionChanges]) -> m.Subscription:
        """Changes it. The secret stays: for another one make another subscription."""
        return await self._transport.read(
            Call("PATCH", f"webhooks/{segment(id)}/", body=fields, etag=etag), m.Subscription
        )

    async def delete(self, id: int, /, *, etag: str) -> None:
        """Ends it, and deletes the record of its deliveries."""
        await self._transport.send(Call("DELETE", f"webhooks/{segment(id)}/", etag=etag))

    async def get(self, id: int, /) -> m.Subscription:
        """Returns one. Subscribers to events. Each message is signed with the subscription's secret (docs/api.md)."""
        return await self._transport.read(Call("GET", f"webhooks/{segment(id)}/"), m.Subscription)


class AsyncResources:
    """All resources, each as an attribute."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.adapters = AsyncAdapters(transport)
        self.alert_silences = AsyncAlertSilences(transport)
        self.alerts = AsyncAlerts(transport)
        self.approvals = AsyncApprovals(transport)
        self.audit = AsyncAudit(transport)
        self.budgets = AsyncBudgets(transport)
        self.classes = AsyncClasses(transport)
        self.clusters = AsyncClusters(transport)
        self.decisions = AsyncDecisions(transport)
        self.embodied_factors = AsyncEmbodiedFactors(transport)
        self.engine_profiles = AsyncEngineProfiles(transport)
        self.engine_residuals = AsyncEngineResiduals(transport)
        self.epochs = AsyncEpochs(transport)
        self.experiments = AsyncExperiments(transport)
        self.feeds = AsyncFeeds(transport)
        self.gpu_rates = AsyncGpuRates(transport)
        self.gpu_types = AsyncGpuTypes(transport)
        self.gpus = AsyncGpus(transport)
        self.instances = AsyncInstances(transport)
        self.instrument_hours = AsyncInstrumentHours(transport)
        self.instruments = AsyncInstruments(transport)
        self.jobs = AsyncJobs(transport)
        self.keys = AsyncKeys(transport)
        self.models = AsyncModels(transport)
        self.modes = AsyncModes(transport)
        self.nodes = AsyncNodes(transport)
        self.offers = AsyncOffers(transport)
        self.overheads = AsyncOverheads(transport)
        self.overrides = AsyncOverrides(transport)
        self.partitions = AsyncPartitions(transport)
        self.pauses = AsyncPauses(transport)
        self.period_figures = AsyncPeriodFigures(transport)
        self.pools = AsyncPools(transport)
        self.profiles = AsyncProfiles(transport)
        self.pues = AsyncPues(transport)
        self.report_schedules = AsyncReportSchedules(transport)
        self.reports = AsyncReports(transport)
        self.requests = AsyncRequests(transport)
        self.scenario = AsyncScenario(transport)
        self.series = AsyncSeries(transport)
        self.services = AsyncServices(transport)
        self.shipped_gpu_types = AsyncShippedGpuTypes(transport)
        self.sites = AsyncSites(transport)
        self.slos = AsyncSlos(transport)
        self.studies = AsyncStudies(transport)
        self.synthetic_history = AsyncSyntheticHistory(transport)
        self.tariffs = AsyncTariffs(transport)
        self.tenants = AsyncTenants(transport)
        self.trials = AsyncTrials(transport)
        self.weather_feeds = AsyncWeatherFeeds(transport)
        self.webhook_deliveries = AsyncWebhookDeliveries(transport)
        self.webhooks = AsyncWebhooks(transport)
