"""Requests for `make soak`: real texts, and valid requests with combinations of all fields."""

import dataclasses
import itertools
import random
from collections.abc import Iterator

import httpx
from hypothesis import HealthCheck, Phase, given, settings

from bench.project import attend_body, encode_body
from bench.workloads import Corpus
from tests.operation_requests import requests
from tests.request_strategies import Body, ModelFacts

SEED = 20_264
OUTPUTS = (("pooled",), ("words",), ("tokens",), ("pooled", "words", "static"))
COUNTS = (1, 1, 1, 4, 32)
ENCODINGS = ("float", "base64")
ATTEND_SHARE = 0.05
"""Assumed share of attend requests, which cost more than encode requests."""


def draw_requests(rest: str, corpus: Corpus, count: int) -> list[tuple[str, Body]]:
    """Return about `count` requests (path and body) that the server at `rest` accepts.

    Half are from the tests' generator, and half have real texts. Raises RuntimeError for a 5xx response.
    """
    drawn = [*_draw_products(rest, count // 2), *_draw_texts(corpus, count // 2)]
    with httpx.Client(base_url=rest, timeout=60) as client:
        accepted = [(path, body) for path, body in drawn if _is_accepted(client, path, body)]
    random.Random(SEED).shuffle(accepted)
    return accepted


def _is_accepted(client: httpx.Client, path: str, body: Body) -> bool:
    response = client.post(path, json=body)
    if response.status_code >= 500:
        raise RuntimeError(f"{path} answered {response.status_code} to {body}")
    return response.is_success


def _draw_products(rest: str, count: int) -> list[tuple[str, Body]]:
    model = httpx.get(f"{rest}/v1/model", timeout=10).raise_for_status().json()
    facts = ModelFacts(**{field.name: model[field.name] for field in dataclasses.fields(ModelFacts)})
    drawn: list[tuple[str, Body]] = []

    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(requests(facts))
    def collect(request: tuple[str, Body]) -> None:
        drawn.append((f"/v1/{request[0]}", request[1]))

    collect()
    return drawn


def _draw_texts(corpus: Corpus, count: int) -> Iterator[tuple[str, Body]]:
    rng = random.Random(SEED)
    texts = [text for text, _ in (*corpus.sentences, *corpus.passages)]
    options = list(itertools.product(OUTPUTS, COUNTS, ENCODINGS))
    for _ in range(count):
        if rng.random() < ATTEND_SHARE:
            yield "/v1/attend", attend_body(rng.choice(corpus.sentences)[0], unit="word")
        else:
            outputs, size, encoding = rng.choice(options)
            yield "/v1/encode", encode_body([rng.choice(texts) for _ in range(size)], encoding, outputs)
