"""The form of a model takes its config.json from a file, or from the Hugging Face hub for a person to look at first."""

from __future__ import annotations

import json

from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import HttpRequest

from core.engine.model_config import BadConfig
from pools.model_files import hugging_face
from pools.models import ModelCard
from scheduler.operations.configure.forms import OwnedForm, form_of
from scheduler.operations.configure.registry import Owned

BUTTON, FILE = "fetch_config", "config_file"


def asked(request: HttpRequest) -> bool:
    """Says whether the form was sent to fill in the config, and not to be stored."""
    return request.method == "POST" and BUTTON in request.POST


def filled(request: HttpRequest, owned: Owned, instance: Model | None) -> OwnedForm | None:
    """Returns the form as it was sent with the config of its file, or of its Hugging Face id where that was asked for.

    None: the form stands as it was sent. What is wrong with a file stands beside the config.
    """
    upload = request.FILES.get(FILE)
    if owned.model is not ModelCard or request.method != "POST" or upload is None or asked(request):
        return _fetched(request, owned, instance)
    data = request.POST.copy()
    try:
        config = hugging_face.parse(upload.read(hugging_face.MOST_BYTES + 1))
    except BadConfig as error:
        form = form_of(owned)(data, instance=instance)
        form.is_valid()
        form.take(ValidationError({"config": f"The file {upload.name}: {str(error).partition(': ')[2]}"}))
        return form
    data["config"] = json.dumps(config, indent=2)
    return form_of(owned)(data, instance=instance)


def _fetched(request: HttpRequest, owned: Owned, instance: Model | None) -> OwnedForm | None:
    """Returns the form as it was sent with the config of its Hugging Face id; what is wrong stands beside the id.

    None: that was not asked for. Blocks for up to 10 s.
    """
    if owned.model is not ModelCard or not asked(request):
        return None
    data = request.POST.copy()
    try:
        config = hugging_face.fetch(data.get("hugging_face_id", "").strip())
    except BadConfig as error:
        form = form_of(owned)(data, instance=instance)
        form.is_valid()
        form.take(ValidationError({"hugging_face_id": str(error).partition(": ")[2]}))
        return form
    data["config"] = json.dumps(config, indent=2)
    return form_of(owned)(data, instance=instance)
