"""Generated examples: the languages have the documented properties, and every configuration trains."""

import json
import random
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.__main__ import EXAMPLES, main
from model.artifact.files import Artifact
from model.examples import paraphrases
from model.examples.ambiguous_words import AMBIGUOUS, TOPICS, make_sentence
from model.examples.paraphrases import make_paraphrase
from service.config import Settings
from tests.conftest import ROOT
from tests.model.train.conftest import to_toml
from tests.serving import ServiceThread
from tests.shared_models import load_shared

CONFIGS = sorted((ROOT / "model" / "examples").glob("*/*.toml"))
ORDER = {"ambiguous-words": ("masked", "words", "causal"), "paraphrases": ("pairs", "student", "cross_encoder")}
"""Each example's configurations in run order, because later ones use the results of earlier ones."""


@given(seed=st.integers(0, 10_000), easy=st.booleans())
def test_one_word_decides_the_sense(seed: int, easy: bool) -> None:
    draw = random.Random(seed)
    word = draw.choice(sorted(AMBIGUOUS))
    topic = draw.choice(AMBIGUOUS[word])
    sentence = make_sentence(draw, word, topic, easy=easy)
    start, end = sentence.span
    assert sentence.words[sentence.word_index] == sentence.text[start:end] == word
    assert sentence.words[sentence.deciding_index] in TOPICS[topic]
    (other,) = set(AMBIGUOUS[word]) - {topic}
    assert not set(sentence.words) & set(TOPICS[other])
    if not easy:
        assert set(sentence.words) & set(TOPICS[topic]) == {sentence.words[sentence.deciding_index]}
        assert sum(noun in TOPICS[topic] for noun in sentence.words) == 1


def test_deciding_words_are_near_and_far_before_and_after() -> None:
    draw = random.Random(0)
    distances = [
        sentence.deciding_index - sentence.word_index
        for sentence in (make_sentence(draw, "bank", "water") for _ in range(400))
    ]
    assert 0.3 < sum(distance > 0 for distance in distances) / len(distances) < 0.7
    assert min(map(abs, distances)) <= 3
    assert max(distances) > 15
    assert min(distances) < -15


def test_words_of_the_two_topics_do_not_overlap() -> None:
    nouns = [noun for names in TOPICS.values() for noun in names]
    assert len(nouns) == len(set(nouns))
    assert not set(nouns) & set(AMBIGUOUS)
    assert all(first != second and {first, second} <= set(TOPICS) for first, second in AMBIGUOUS.values())


@given(seed=st.integers(0, 10_000), held_out=st.booleans())
def test_negatives_have_the_words_of_the_pair(seed: int, held_out: bool) -> None:
    pair = make_paraphrase(random.Random(seed), held_out=held_out)
    bags = [sorted(text.rstrip(".").split()) for text in (pair.query, pair.positive, *pair.negatives)]
    assert sorted(bags[2:]) == sorted(bags[:2])
    assert len({pair.query, pair.positive, *pair.negatives}) == 4
    persons = set(paraphrases.PERSONS[-paraphrases.HELD_OUT_PERSONS :])
    assert bool(set(bags[0]) & persons) == held_out


def test_held_out_queries_are_not_documents(tmp_path: Path) -> None:
    paraphrases.write(tmp_path)
    records = [json.loads(line) for line in (tmp_path / "retrieval.jsonl").read_text().splitlines()]
    queries = [record["query"] for record in records if "query" in record]
    documents = [record.get("positive") or record["document"] for record in records]
    assert len(queries) == len(set(queries)) == paraphrases.QUERIES
    assert len(documents) == len(set(documents)) == 3 * paraphrases.QUERIES
    assert not set(queries) & set(documents)
    training = (tmp_path / "pairs.jsonl").read_text() + (tmp_path / "texts.jsonl").read_text()
    assert not any(text in training for text in (*queries, *documents))


def test_every_configuration_belongs_to_an_example() -> None:
    assert {(path.parent.name, path.stem) for path in CONFIGS} == {
        (name, stem) for name, stems in ORDER.items() for stem in stems
    }
    assert set(ORDER) == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDER)
def test_every_configuration_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Uses the example's own data, with two steps and small batches."""
    assert main(["example", name, "-o", str(tmp_path)]) == 0
    assert set(capsys.readouterr().out.split()) == {str(tmp_path / f"{stem}.toml") for stem in ORDER[name]}
    for stem in ORDER[name]:
        path = tmp_path / f"{stem}.toml"
        document: dict[str, dict[str, Any]] = tomllib.loads(path.read_text())
        document["optimizer"]["warmup_steps"] = 1
        document["run"] |= {"steps": 2, "rows_per_batch": 4, "validation_batches": 1}
        path.write_text(to_toml(document))
        assert main(["train", str(path), "-o", str(tmp_path / stem)]) == 0, capsys.readouterr().err
        manifest = Artifact.open(tmp_path / stem / "artifact").manifest
        assert manifest.name == document["model"]["name"]
        assert manifest.training is not None
        assert manifest.training.steps == 2


@pytest.mark.slow
def test_cross_encoder_tells_who_gave_and_who_received(tmp_path: Path, default_artifact: Path) -> None:
    """The embeddings of its initial model rank a sentence with the same words first."""
    assert main(["example", "paraphrases", "-o", str(tmp_path)]) == 0
    with (tmp_path / "cross_encoder.toml").open("a") as config:
        config.write("validation_batches = 1\n")  # does not affect the result
    assert main(["train", str(tmp_path / "cross_encoder.toml"), "-o", str(tmp_path / "run")]) == 0
    directories = (tmp_path / "run" / "artifact", default_artifact)
    models = [load_shared(Settings(model_dir=directory, precision="float32")) for directory in directories]
    request = json.loads((tmp_path / "rerank.json").read_text())
    draw = random.Random(9)
    pairs = [make_paraphrase(draw, held_out=True) for _ in range(50)]
    with ServiceThread(*models, models="converse-verbs-reranker=a,embedder=b") as service:

        def rerank(**body: Any) -> list[dict[str, Any]]:
            results: list[dict[str, Any]] = httpx.post(f"{service.rest}/v1/rerank", json=body).json()["results"]
            return results

        def count_correct(model: str) -> int:
            bodies = ({"query": pair.query, "documents": [*pair.negatives, pair.positive]} for pair in pairs)
            return sum(rerank(model=model, **body)[0]["index"] == 2 for body in bodies)

        assert count_correct(request["model"]) >= 40
        assert count_correct("embedder") <= 5
        explanations = [result["explanation"] for result in rerank(**request)]
    effects = [effect for item in explanations for effect in (*item["query_effects"], *item["document_effects"])]
    assert len(effects) == 3 * (7 + 7)
    assert max(map(abs, effects)) > 0.1


def test_unwritable_directory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["example", "paraphrases", "-o", str(tmp_path / "file")]) == 73
    error = capsys.readouterr().err
    assert error.startswith("attendant-model: ")
    assert "cannot be written" in error
    assert error.count("\n") == 1
