"""Everything an operator owns over REST: one view for all of it, which writes as the forms do.

Several at a time: a list as the body of POST on a list makes all or none, and so does PATCH with items that carry `id`
and `etag`; an error names the item by its place in the list.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from django.core.exceptions import ValidationError as ModelError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from pools.access import audit
from pools.access.rights import everywhere
from scheduler.operations import visibility
from scheduler.operations.configure import changes, consequences, dry_run
from scheduler.operations.configure.registry import OWNED, Owned

from ..rest.base import ReadOnly, shown
from ..rest.idempotency import conditional, idempotent
from ..rest.owned import address, filters_of, ordering_of, rows_of, serializer_of, site_path
from ..rest.permissions import require_at
from ..rest.problems import Conflict, fields, of_model
from ..rest.representation import check_match, chosen, same_settings

Built = Callable[[], tuple[Model, dict[str, Any]]]
MOST = 500  # items of one request
ITEM = {
    "type": "object",
    "required": ["id", "etag"],
    "properties": {"id": {"type": "integer"}, "etag": {"type": "string"}},
}
SEVERAL = {"application/json": {"type": "array", "items": ITEM, "minItems": 1, "maxItems": MOST}}


class ConsequenceSerializer(serializers.Serializer):
    """A consequence of the change. An error keeps it from being stored; an empty `field` stands for the whole row."""

    level = serializers.ChoiceField(choices=["error", "warning", "info"])
    field = serializers.CharField(allow_blank=True)
    text = serializers.CharField()


class ValidationResult(serializers.Serializer):
    """The result of a validation: whether the change would be stored, and its consequences."""

    valid = serializers.BooleanField()
    consequences = ConsequenceSerializer(many=True)


class OwnedViewSet(ReadOnly):
    """One kind of thing that an operator owns. A single one is found by its name, or by `~` and its id."""

    owned: ClassVar[Owned]
    lookup_url_kwarg = "key"
    lookup_value_regex = "[^/]+"

    def get_queryset(self) -> QuerySet[Any]:
        """Returns what the pages show as well: rows of the person's sites, and rows that belong to no site."""
        found: QuerySet[Any] = self.queryset.all()
        return (
            found
            if everywhere(self.request.user)
            else found.filter(pk__in=visibility.owned(self.request.user, self.owned).values("pk"))
        )

    # -- one at a time -----------------------------------------------------------------------------

    def get_object(self, lock: bool = False) -> Any:
        key = self.kwargs["key"]
        by_id = key.startswith("~") and key[1:].isascii() and key[1:].isdigit() and len(key) < 20
        if not by_id and self.owned.lookup != ("name",):
            raise Http404("Rows of this kind have no name: give ~ and the id.")
        found = self.get_queryset().filter(**({"pk": int(key[1:])} if by_id else {"name": key}))
        row = (found.select_for_update(of=("self",)) if lock else found).first()
        if row is None:
            raise Http404(f"There is no {self.owned.one} '{key[:80]}' that you may see.")
        return row

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        names = chosen(request, self.names())
        return self._shown(self.get_object(), names)

    @idempotent
    def create(self, request: Request) -> Response:
        """Makes one, or each of a list: all or none."""
        if isinstance(request.data, list):
            rows = self._each(request.data, lambda item: self._create(item))
            return Response(self.get_serializer(rows, many=True).data, status=status.HTTP_201_CREATED)
        return self._made(self._create(request.data))

    @conditional
    @transaction.atomic
    def partial_update(self, request: Request, key: str) -> Response:
        """Changes the fields that are sent. Of what comes in versions it enters another one (201): none is changed."""
        row = self.get_object(lock=True)
        check_match(request.headers.get("If-Match"), self.get_serializer(row).data["etag"])
        stored = self._update(row, request.data)
        return self._shown(stored) if stored.pk == row.pk else self._made(stored)

    @conditional
    @transaction.atomic
    def destroy(self, request: Request, key: str) -> Response:
        """Deletes it. 409 where something else rests on it, which the answer names."""
        row = self.get_object(lock=True)
        check_match(request.headers.get("If-Match"), self.get_serializer(row).data["etag"])
        try:
            changes.delete(self._actor(), row)
        except ModelError as error:
            raise Conflict(" ".join(error.messages)) from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    # -- several at a time, and none at all --------------------------------------------------------

    @transaction.atomic
    def bulk_update(self, request: Request) -> Response:
        """Changes several: each item has `id`, `etag` and the fields to change. All or none."""
        if not isinstance(request.data, list):
            raise ValidationError("Send a list of objects, each with id, etag and what is to change.")

        def change(item: Any) -> Model:
            row = self._one(item.get("id") if isinstance(item, dict) else None)
            if not same_settings(item.get("etag"), self.get_serializer(row).data["etag"]):
                raise ValidationError({"etag": "it is not what was read. Remedy: Read it again and send its etag."})
            return self._update(row, {name: value for name, value in item.items() if name not in ("id", "etag")})

        rows = self._each(request.data, change)
        return Response(self.get_serializer(rows, many=True).data)

    @action(detail=False, methods=["post"], url_path="validate")
    def validate(self, request: Request) -> Response:
        """Returns the consequences of making this; nothing is stored.

        Of a list each is tried after those before it: with `id` it is changed so, without it is made. The answer is a
        list of results in its order.
        """
        if not isinstance(request.data, list):
            return Response(self._validations([lambda: self._build(None, request.data)])[0])
        if not 1 <= len(request.data) <= MOST:
            raise ValidationError(f"Send 1 to {MOST} items.")
        return Response(self._validations([partial(self._item, item) for item in request.data]))

    @action(detail=True, methods=["post"], url_path="validate")
    def validate_change(self, request: Request, key: str) -> Response:
        """Returns the consequences of changing it in this way; nothing is stored."""
        row = self.get_object()
        return Response(self._validations([lambda: self._build(row, request.data)])[0])

    # -- how ---------------------------------------------------------------------------------------

    def _build(self, row: Model | None, data: object) -> tuple[Model, dict[str, Any]]:
        """Returns the row as it would be, not stored, and its many-to-many relations. Raises ValidationError."""
        known = self.get_serializer().fields
        if not isinstance(data, dict):
            raise ValidationError("Send a JSON object.")
        if strange := [name for name in data if name not in known]:
            writable = [name for name, field in known.items() if not field.read_only]
            raise ValidationError(
                {strange[0][:80]: f"There is no such field. Remedy: Known are {', '.join(writable)}."}
            )
        serializer = self.get_serializer(row, data=data, partial=row is not None)
        serializer.is_valid(raise_exception=True)
        given = dict(serializer.validated_data)
        related = {name: given.pop(name) for name in self.owned.many if name in given}
        built = self.owned.model() if row is None else row
        for name, value in given.items():
            setattr(built, name, value)
        return built, related

    def _create(self, data: object) -> Model:
        return changes.create(self._actor(), *self._build(None, data))

    def _update(self, row: Model, data: object) -> Model:
        return changes.update(self._actor(), *self._build(self._again(row), data))

    def _again(self, row: Model) -> Model:
        """Reads the row again, as a copy that may be changed while the other stays as it was."""
        copy: Model = self.get_queryset().get(pk=row.pk)
        return copy

    def _each(self, items: list[Any], do: Callable[[Any], Model]) -> list[Model]:
        """Does all items or none. Raises ValidationError with the errors of each, by its place in the list."""
        if not 1 <= len(items) <= MOST:
            raise ValidationError(f"Send 1 to {MOST} items.")
        rows, wrong = [], {}
        for index, item in enumerate(items):
            try:
                with transaction.atomic():
                    rows.append(do(item))
            except ModelError as error:
                wrong[str(index)] = of_model(error)
            except ValidationError as error:
                wrong[str(index)] = error.detail
        if wrong:
            raise ValidationError(wrong)
        return [self._again(row) for row in rows]

    @transaction.atomic
    def _validations(self, builds: list[Built]) -> list[dict[str, Any]]:
        """Each is stored for those after it, and at the end none."""
        found = [self._validated(build) for build in builds]
        transaction.set_rollback(True)
        return found

    def _validated(self, build: Built) -> dict[str, Any]:
        try:
            built, related = build()
        except ValidationError as error:
            found = [consequences.Consequence("error", one["field"], one["detail"]) for one in fields(error.detail)]
            return _validation(found)
        require_at(self.request.user, self.owned.right, self.owned.site_of(built))
        store = changes.create if built.pk is None else changes.update
        return _validation(dry_run.tried(built, lambda row: store(self._actor(), row, related)).consequences)

    def _item(self, item: object) -> tuple[Model, dict[str, Any]]:
        """Builds one item of a list: with `id` the row as it would be changed, else a new one."""
        if not isinstance(item, dict) or "id" not in item:
            return self._build(None, item)
        given = {name: value for name, value in item.items() if name not in ("id", "etag")}
        return self._build(self._again(self._one(item["id"])), given)

    def _one(self, number: object) -> Model:
        """Raises ValidationError where there is none of this id that one may see."""
        if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 1 << 63:
            raise ValidationError({"id": "give the id of what is to change"})
        row: Model | None = self.get_queryset().select_for_update(of=("self",)).filter(pk=number).first()
        if row is None:
            raise ValidationError({"id": f"there is no {self.owned.one} {number} that you may see"})
        return row

    def _shown(self, row: Model, names: Any = None) -> Response:
        return shown(self.request, self.get_serializer(row).data, names)

    def _made(self, row: Model) -> Response:
        data = self.get_serializer(self._again(row)).data
        headers = {"Location": address(row), "ETag": data["etag"]}
        return Response(data, status=status.HTTP_201_CREATED, headers=headers)

    def _actor(self) -> audit.Actor:
        return audit.actor_of(self.request, "api")


def _validation(found: Sequence[consequences.Consequence]) -> dict[str, Any]:
    return {
        "valid": not any(one.level == "error" for one in found),
        "consequences": [{"level": one.level, "field": one.field, "text": one.text} for one in found],
    }


def _proxy(name: str, *serializers: Any) -> PolymorphicProxySerializer:
    """One of several shapes, for the OpenAPI document: with it a list is not taken for a page of one."""
    return PolymorphicProxySerializer(name, list(serializers), resource_type_field_name=None, many=False)


def viewset_of(owned: Owned) -> type[OwnedViewSet]:
    """Makes the view of one kind."""
    serializer = serializer_of(owned)
    usual, allowed = ordering_of(owned)
    name = re.sub(r"[^A-Za-z0-9]", "", string.capwords(re.sub(r"'s\b|-", " ", owned.one)))

    @extend_schema(request=SEVERAL, responses={200: _proxy(f"{name}Several", serializer(many=True))}, filters=False)
    def bulk_update(self: OwnedViewSet, request: Request) -> Response:
        return OwnedViewSet.bulk_update(self, request)

    bulk_update.__doc__ = OwnedViewSet.bulk_update.__doc__
    made = type(
        f"{name}ViewSet",
        (OwnedViewSet,),
        {
            "__doc__": owned.help,
            "owned": owned,
            "bulk_update": bulk_update,
            "queryset": rows_of(owned),
            "serializer_class": serializer,
            "filterset_class": filters_of(owned),
            "writes": owned.right,
            "site_path": site_path(owned),
            "ordering": usual,
            "ordering_fields": allowed,
        },
    )
    one_or_many = _proxy(f"{name}OneOrMany", serializer, serializer(many=True))
    described: type[OwnedViewSet] = extend_schema_view(
        create=extend_schema(request=one_or_many, responses={201: one_or_many}),
        partial_update=extend_schema(responses={200: serializer, **({201: serializer} if owned.versions else {})}),
        validate=extend_schema(
            request=one_or_many,
            responses=_proxy(f"{name}ValidationResults", ValidationResult, ValidationResult(many=True)),
        ),
        validate_change=extend_schema(request=serializer(partial=True), responses=ValidationResult),
    )(made)
    return described


VIEWSETS = {kind: viewset_of(owned) for kind, owned in OWNED.items()}
