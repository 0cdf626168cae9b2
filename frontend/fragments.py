"""What a live page asks for again and again goes over the wire compressed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class FragmentGzipMiddleware(GZipMiddleware):
    """Compresses fragments of pages (htmx), which are alike in every row; the rest as it is.

    REST keeps its strong ETags so, which compression would weaken, and forms their tokens out of compressed bodies.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if request.headers.get("HX-Request") != "true" or not isinstance(response, HttpResponse):
            return response
        if b"csrfmiddlewaretoken" in response.content:
            return response
        return super().process_response(request, response)
