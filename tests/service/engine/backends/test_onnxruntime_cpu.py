"""The runtime: a text's vectors are its own, in any company; a number that is not finite never leaves."""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model.corpus import sample_sentences
from model.packing import lay_out
from model.tokenizer import Source
from service.engine.backends.onnxruntime_cpu import Runtime
from service.engine.backends.select import CPU
from service.engine.model_loader import LoadedModel
from service.engine.schema.encode import Text
from service.errors import NonFiniteOutput
from tests.service.conftest import POISON, House, cosine, encode, least_cosine

SENTENCES = (
    "money bank grows",
    "river bank flows",
    "Seven small boats wait at the bank for the morning tide, and nobody minds the wind or the rain.",
    "!",
    "Ein kleiner Hund läuft über die Brücke.",
    "人生は短い",
)


class Noting:
    """A session that notes each run."""

    def __init__(self, session: Any, calls: list[int]) -> None:
        self._session, self._calls = session, calls

    def run(self, outputs: None, inputs: dict[str, Any]) -> Any:
        self._calls.append(inputs["ids"].size)
        return self._session.run(outputs, inputs)


def texts(model: LoadedModel, *sentences: str) -> list[Text]:
    return [Text(tokens, "mean", True) for tokens in model.tokenizer.encode([Source(text) for text in sentences])]


def hidden_of(model: LoadedModel, sentences: list[str]) -> list[NDArray[np.float32]]:
    found = [vectors.hidden for vectors in model.runtime.run(texts(model, *sentences))]
    return [vectors[0] for vectors in found if vectors is not None]


def test_a_text_gets_the_same_vectors_in_any_company(model: LoadedModel) -> None:
    """Packed in any order or alone."""
    alone = {sentence: hidden_of(model, [sentence])[0] for sentence in SENTENCES}
    for seed in range(4):
        company = random.Random(seed).sample(SENTENCES, len(SENTENCES))
        for sentence, vectors in zip(company, hidden_of(model, company), strict=True):
            assert cosine(vectors, alone[sentence]) >= least_cosine(model)


def test_a_wide_run_gives_the_same(model: LoadedModel) -> None:
    """However many threads it takes."""
    company = texts(model, *SENTENCES)
    for narrow, wide in zip(model.runtime.run(company), model.runtime.run_wide(company), strict=True):
        assert narrow.pooled is not None
        assert cosine(narrow.pooled, wide.pooled) >= least_cosine(model)


async def test_a_lone_text_is_run_wide(house: House, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the provider has threads for it; many texts are not."""
    calls: list[int] = []
    assert isinstance(model.runtime, Runtime)
    session = model.runtime._wide_session
    monkeypatch.setattr(model.runtime, "_wide_session", Noting(session, calls))
    await encode(house.engine, SENTENCES[0])
    alone = len(calls)
    assert alone == (1 if model.runtime.provider.wide_threads > 1 else 0)
    await encode(house.engine, *(f"short text number {n}" for n in range(128)))
    assert len(calls) <= alone + 1  # what is left at the end may fit one row


def test_context_makes_the_vector(model: LoadedModel) -> None:
    """The same word at the same place differs between texts, so segments do not leak and are not ignored."""
    money, river = hidden_of(model, ["money bank grows", "river bank flows"])
    assert cosine(money[2], river[2]) < 0.9


def test_what_padding_holds_never_matters(model: LoadedModel) -> None:
    """Ids and positions of segment 0 may be anything."""
    (text,) = texts(model, SENTENCES[2])
    row = lay_out([(text.tokens.ids, None)], 64)
    assert isinstance(model.runtime, Runtime)
    session = model.runtime._session
    (clean,) = session.run(None, row.inputs)
    row.inputs["ids"][0, row.tokens :] = 2769
    row.inputs["positions"][0, row.tokens :] = 17
    (other,) = session.run(None, row.inputs)
    assert cosine(other[0, : row.tokens], clean[0, : row.tokens]) >= least_cosine(model)


def test_only_what_is_wanted_comes_back(model: LoadedModel) -> None:
    """Token vectors, a pooled vector by the text's own pooling, or both."""
    (tokens,) = model.tokenizer.encode([Source(SENTENCES[0])])
    whole, mean, cls = model.runtime.run(
        [Text(tokens, None, True), Text(tokens, "mean", False), Text(tokens, "cls", False)]
    )
    assert whole.pooled is None
    assert (mean.hidden, cls.hidden) == (None, None)
    assert whole.hidden is not None
    assert whole.hidden.shape == (1, len(tokens), 384)
    assert cosine(mean.pooled, whole.hidden.mean(axis=1)) >= least_cosine(model)
    assert cosine(cls.pooled, whole.hidden[0, 0]) >= least_cosine(model)


def test_nan_raises(poisoned_model: LoadedModel) -> None:
    """It is never handed out, whichever text of the row it is in."""
    poisoned_model.runtime.run(texts(poisoned_model, "harmless"))
    with pytest.raises(NonFiniteOutput):
        poisoned_model.runtime.run(texts(poisoned_model, "harmless", f"a {POISON} runs", "harmless too"))


async def test_short_texts_take_few_runs(house: House, model: LoadedModel) -> None:
    """A guard against packing getting lost: 32 texts of a request fill rows."""
    found = await encode(house.engine, *(f"short text number {n}" for n in range(32)))
    shared, workers = model.runtime.row_lengths.shared, model.runtime.provider.workers
    assert house.rows_run <= 2 * -(-found.token_count // shared) + workers


async def test_little_of_what_runs_is_padding(house: House, model: LoadedModel) -> None:
    """A guard in counts: padded tokens per token over real sentences, many at once and each alone."""
    sentences = sample_sentences(256)
    await encode(house.engine, *sentences)
    rows = house.rows_run
    assert house.sample("attendant_batch_padding_ratio_sum", lane="fast") / rows <= 0.06
    if model.runtime.provider.name == CPU:  # where lengths are few, a lone text may be padded by half
        for sentence in sentences[:32]:
            await encode(house.engine, sentence)
        alone = house.rows_run - rows
        assert alone == 32
        assert house.sample("attendant_batch_padding_ratio_sum", lane="fast") <= 0.06 * rows + 0.12 * alone


def test_token_vectors_are_not_copied(model: LoadedModel) -> None:
    """Those of all texts are views of the one array that the runtime gave."""
    found = [vectors.hidden for vectors in model.runtime.run(texts(model, *SENTENCES))]
    bases = {id(values.base if values.base is not None else values) for values in found if values is not None}
    assert len(found) == len(SENTENCES)
    assert len(bases) == 1
