"""The API of the service as an OpenAPI document, and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

import shoal
from shoal.pages import html as look
from shoal.serving.service.posted_items import PostItems

ANSWERS = {
    "recommend": {"items": [{"item": "50", "score": 3.9}], "artifact": "monday"},
    "score": {"scores": [3.9], "artifact": "monday"},
    "similar": {"items": [{"item": "181", "score": 0.93}], "artifact": "monday"},
    "predict": {"clicks": [0.03], "artifact": "monday"},
    "explain": {
        "shares": [{"item": "181", "share": 2.1}, {"item": "7", "share": 1.0}],
        "score": 3.9,
        "rest": 0.8,
        "rest_is": "an empty history",
        "error": 0.0,
        "artifact": "monday",
    },
}
WRONG = {
    "401": "no token, or another",
    "404": "a user or an item that the model does not know",
    "405": "another method than POST",
    "409": "of new items: one is there already",
    "408": "the request came too slowly",
    "413": "the request is too large",
    "415": "the body is no JSON",
    "422": "the request cannot be answered: what is wrong with it",
    "429": "too many requests wait",
    "503": "no answer in time; with retry-after where it was refused at once",
}


def describe(
    questions: Mapping[str, type[BaseModel]],
    token: bool,
    answers: Mapping[str, Any] = ANSWERS,
    title: str = "shoal serve",
    takes_items: bool = False,
) -> dict[str, Any]:
    """The OpenAPI document of a service; answers: an example for each kind of question."""
    paths_of = {f"/v1/{kind}": (question, answers[kind]) for kind, question in questions.items()}
    if takes_items:
        paths_of["/items"] = PostItems, {"added": 1, "items": 1683, "artifact": "monday"}
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for path, (question, answer) in paths_of.items():
        schema = question.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[question.__name__] = schema
        content = {"schema": {"$ref": f"#/components/schemas/{question.__name__}"}}
        responses: dict[str, Any] = {
            "200": {
                "description": "the answer",
                "content": {"application/json": {"example": answer}},
            }
        }
        responses |= {status: {"description": why} for status, why in WRONG.items()}
        paths[path] = {
            "post": {
                "summary": (question.__doc__ or "").split("\n")[0],
                "requestBody": {"required": True, "content": {"application/json": content}},
                "responses": responses,
            }
        }
    for path, summary in {
        "/v1/examples": "what may be asked here, with some users and items to try",
        "/health": "whether the process lives",
        "/ready": "whether it answers, and with what",
        "/metrics": "figures for Prometheus",
    }.items():
        paths[path] = {
            "get": {"summary": summary, "responses": {"200": {"description": "so it is"}}}
        }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": shoal.__version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if token:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"token": scheme}
        document["security"] = [{"token": []}]
    return document


def page_of(document: dict[str, Any]) -> str:
    """A plain page of an OpenAPI document."""
    routes = [
        (f"{method.upper()} {path}", facts["summary"])
        for path, methods in document["paths"].items()
        for method, facts in methods.items()
    ]
    text = look.escape(json.dumps(document, indent=1))
    return look.page(
        "What may be asked",
        look.Html('<p><a href="/">try it</a>, <a href="/openapi.json">openapi.json</a></p>'),
        look.table(["route", "answer"], routes),
        look.section("As OpenAPI", "", look.Html(f"<pre>{text}</pre>")),
    )
