"""What may be asked, as OpenAPI and as a page of it."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

import shoal

ANSWERS = {
    "recommend": {"items": [{"item": "50", "score": 3.9}], "artifact": "monday"},
    "score": {"scores": [3.9], "artifact": "monday"},
    "similar": {"items": [{"item": "181", "score": 0.93}], "artifact": "monday"},
    "predict": {"clicks": [0.03], "artifact": "monday"},
}
WRONG = {
    "401": "no token, or another",
    "404": "a user or an item that the model does not know",
    "408": "the request came too slowly",
    "413": "the request is too large",
    "415": "the body is no JSON",
    "422": "the request cannot be answered: what is wrong with it",
    "429": "too many requests wait",
    "503": "no answer in time",
}


def describe(questions: Mapping[str, type[BaseModel]], token: bool) -> dict[str, Any]:
    """The OpenAPI document of the service."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for kind, question in questions.items():
        schema = question.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[question.__name__] = schema
        content = {"schema": {"$ref": f"#/components/schemas/{question.__name__}"}}
        answers: dict[str, Any] = {
            "200": {
                "description": "the answer",
                "content": {"application/json": {"example": ANSWERS[kind]}},
            }
        }
        answers |= {status: {"description": why} for status, why in WRONG.items()}
        paths[f"/v1/{kind}"] = {
            "post": {
                "summary": (question.__doc__ or "").split("\n")[0],
                "requestBody": {"required": True, "content": {"application/json": content}},
                "responses": answers,
            }
        }
    for path, what in {
        "/health": "whether the process lives",
        "/ready": "whether it answers, and with which artifact",
        "/metrics": "figures for Prometheus",
    }.items():
        paths[path] = {"get": {"summary": what, "responses": {"200": {"description": "so it is"}}}}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "shoal serve", "version": shoal.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if token:
        scheme = {"type": "http", "scheme": "bearer"}
        found["components"]["securitySchemes"] = {"token": scheme}
        found["security"] = [{"token": []}]
    return found


def page_of(document: dict[str, Any]) -> str:
    """A plain page of an OpenAPI document."""
    summaries = "".join(
        f"<h2>{method.upper()} {path}</h2><p>{html.escape(facts['summary'])}</p>"
        for path, methods in document["paths"].items()
        for method, facts in methods.items()
    )
    return (
        "<!doctype html><meta charset=utf-8><title>shoal serve</title><h1>What may be asked</h1>"
        f'<p><a href="/">try it</a></p>{summaries}<h2><a href="/openapi.json">openapi.json</a></h2>'
        f"<pre>{html.escape(json.dumps(document, indent=1))}</pre>"
    )
