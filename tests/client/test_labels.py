"""attendant-client's rerank, classify and token-classify, with models of each kind and the default embedding model."""

from collections.abc import Iterator
from typing import Any

import pytest
from attendant_client import AttendantError, Client, Input

from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.client.clients import KINDS, service_url
from tests.client.results import assert_equal
from tests.labels import CLASSIFIER, CROSS_ENCODER, TOKEN_CLASSIFIER, export_classifier
from tests.serving import ServiceThread

QUERY = "how do I open a bank account"
DOCUMENTS = [
    "The river bank is closed.",
    "Opening an account takes money and time.",
    "money",
    "A cat sat by the river.",
]
TEXTS = ["the bank by the river", "money grows in a bank", "a"]
LONG = "bank " * 70


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    """A server of four models; the embedding model is the default."""
    ranker, labeler, tagger = (
        LoadedModel.load(Settings(model_dir=export_classifier(kind), precision="float32"))
        for kind in (CROSS_ENCODER, CLASSIFIER, TOKEN_CLASSIFIER)
    )
    with ServiceThread(model, ranker, labeler, tagger, models="embedder=a,ranker=b,labeler=c,tagger=d") as running:
        yield running


def test_clients_return_the_same_ranks_and_labels(service: ServiceThread) -> None:
    results: list[tuple[Any, ...]] = []
    for kind, protocol in KINDS.values():
        with kind(service_url(service, protocol)) as client:
            ranked = client.rerank(QUERY, DOCUMENTS, model="ranker")
            raw = client.rerank(QUERY, [*DOCUMENTS, LONG], model="ranker", top_n=2, raw_scores=True, truncation="right")
            explained = client.rerank(QUERY, DOCUMENTS, model="ranker", effect="occlusion", unit="token", explain_top=2)
            classified = client.classify([*TEXTS, Input(TEXTS[0], pair=TEXTS[1])], model="labeler")
            best = client.classify(LONG, model="labeler", top_k=1, raw_scores=True, truncation="left")
            words = client.classify(TEXTS, model="labeler", effect="occlusion")
            tokens = client.classify(Input(token_ids=[7, 8]), model="labeler", effect="occlusion", unit="token")
            models = [client.model(name) for name in ("embedder", "ranker", "labeler", "tagger")]
            tagged = [
                client.token_classify([*TEXTS, Input(TEXTS[0], pair=TEXTS[1])], model="tagger", aggregation=aggregation)
                for aggregation in (None, "none", "first", "average", "max")
            ]
            cut = client.token_classify([LONG, "a"], model="tagger", truncation="right")
            results.append((ranked, raw, explained, classified, best, words, tokens, models, tagged, cut))
    for other in results[1:]:
        assert_equal(other, results[0], tolerance=1e-5)


def test_inputs_over_the_limit_are_classified_in_parts(client: Client) -> None:
    response = client.classify([*["a"] * 300, TEXTS[0]], model="labeler")
    assert len(response.results) == 301
    assert response.token_count == sum(result.token_count for result in response.results)
    (alone,) = client.classify(TEXTS[0], model="labeler").results
    assert_equal(response.results[300], alone, tolerance=1e-5)
    with pytest.raises(AttendantError) as raised:
        client.classify([*["a"] * 300, " "], model="labeler")
    assert raised.value.field == "inputs[300]"
