"""GET /v1/openapi.json and /docs: what the API takes and answers, for programs and for people. Neither needs a key."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe

from tracker import openapi
from tracker.views.models import openai_view
from tracker.views.responses import require_method

# Swagger UI's own files and nothing else: no other site's, no script in the page. Its pictures are in its style sheet.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"


@openai_view
def openapi_document(request: HttpRequest) -> HttpResponse:
    require_method(request, "GET")
    return JsonResponse(openapi.document(settings.PUBLIC_URL), headers={"Cache-Control": "max-age=300"})


@csrf_exempt  # what nobody may post gets 405
@require_safe
def documentation(request: HttpRequest) -> HttpResponse:
    response = render(request, "tracker/documentation.html")
    response["Content-Security-Policy"] = POLICY
    return response
