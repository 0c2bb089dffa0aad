"""Chunks of long texts: windows of late chunking, the limits of documents, both clients, and `attendant embed --chunk`.

test_products.py draws the options, and compares the vectors with those of the chunks' texts and tokens.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attendant_client import AttendantError, ChunkOptions, Client, EncodeResult, Input
from attendant_client.types import MAX_CHUNKED_CHARACTERS
from hypothesis import given
from hypothesis import strategies as st

from model.artifact.tokenizer import Tokenizer, TokenizerInput
from service.engine.model_loader import LoadedModel
from service.operations.chunks import Range, Room, pack, split
from tests.model.tiny_tokenizers import BUILDERS
from tests.service.commands.embed_command import RunEmbed, run_embed
from tests.serving import ServiceThread

__all__ = ["run_embed"]

BERLIN = (
    "Berlin is the capital and largest city of Germany. Its more than 3.85 million inhabitants make it the European "
    "Union's most populous city. The city is also one of the states of Germany."
)
LONG = "\n\n".join(f"Part {number}: {BERLIN}" for number in range(30))
"""About 1,500 tokens: eight windows of the default model."""


@pytest.fixture(scope="module")
def service(model: LoadedModel) -> Iterator[ServiceThread]:
    with ServiceThread(model) as running:
        yield running


@pytest.fixture(params=["rest", "grpc"])
def client(request: pytest.FixtureRequest, service: ServiceThread) -> Iterator[Client]:
    url = service.rest if request.param == "rest" else f"grpc://{service.grpc}"
    with Client(url, timeout_s=120) as opened:
        yield opened


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    limit=st.integers(1, 30),
    overlap=st.integers(0, 15),
    period=st.integers(1, 30),
    capacity=st.integers(1, 40),
)
def test_windows_cover_each_item_once(sizes: list[int], limit: int, overlap: int, period: int, capacity: int) -> None:
    """`capacity` simulates windows that produce more tokens when encoded separately than within the whole text."""
    ends = np.cumsum(sizes).tolist()
    items = [Range(end - size, end, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    groups = [number // period for number in range(len(items))]
    windows = pack(items, limit, overlap, lambda first, last: max(0, last.last - first.first - capacity), groups)
    assert [number for window in windows for number in range(window.new, window.last)] == list(range(len(items)))
    for window in windows:
        size = items[window.last - 1].last - items[window.start].first
        assert size <= min(limit, capacity) or window.last - window.start == 1
        assert items[window.new].first - items[window.start].first <= overlap
        assert len({groups[number] for number in range(window.new, window.last)}) == 1


@pytest.mark.parametrize(("kind", "prompt"), [("metaspace", ""), ("wordpiece", "Q")])
def test_sentences_that_are_too_long_alone_are_split(kind: str, prompt: str) -> None:
    """The first word of a text has more tokens than the same word after a space, or than a prompt and the word."""
    tokenizer = Tokenizer(BUILDERS[kind]().to_str().encode())
    first, last = "Rain.", "Money opens his counts."
    sources = [TokenizerInput(prompt), TokenizerInput(last, prompt=prompt)]
    bare, needed = map(len, tokenizer.encode(sources, offsets=False))
    room = needed - bare - 1
    options = ChunkOptions(merge=False, max_tokens=room)
    chunks = split(f"{first} {last}", (), options, Room(room, prompt), tokenizer, "").texts
    sources = [TokenizerInput(chunk.text, prompt=prompt) for chunk in chunks]
    assert max(map(len, tokenizer.encode(sources, offsets=False))) <= bare + room
    assert [chunk.text for chunk in chunks[:2]] == [first, last.rpartition(" ")[0]]


def test_late_chunks_know_the_text_before_them(client: Client) -> None:
    """The second and third sentence mention Berlin only by words that refer back to the first."""
    question = client.embed(["Berlin"])[0]
    scores = {}
    for mode in ("separate", "late"):
        (result,) = client.encode(BERLIN, chunks={"merge": False, "mode": mode}).results
        scores[mode] = vectors_of(result) @ question
    assert (scores["late"][1:] > scores["separate"][1:] + 0.04).all()


def test_long_text_is_read_in_windows(client: Client) -> None:
    """Each chunk is the mean of its tokens in one window; a window repeats at most a quarter of the previous one."""
    options = ChunkOptions(by="sentence", merge=False, mode="late")
    (result,) = client.encode(LONG, chunks=options).results
    assert result.chunks is not None
    assert " ".join(chunk.text for chunk in result.chunks).split() == LONG.split()
    (plain,) = client.encode(LONG, chunks={"merge": False}).results
    size = sum(chunk.token_count for chunk in result.chunks)
    assert size < result.token_count < 1.4 * size + 300
    # A chunk in the middle of a window has the same vector whatever the windows before it were.
    start = result.chunks[60].start
    shifted = [(chunk.start - start, chunk.end - start) for chunk in result.chunks[60:]]
    other = client.encode([Input(LONG[start:], spans=shifted)], chunks={"by": "span", "mode": "late"}).results[0]
    assert [chunk.text for chunk in other.chunks or ()] == [chunk.text for chunk in result.chunks[60:]]
    closeness = (vectors_of(result)[60:] * vectors_of(other)).sum(axis=1)
    assert closeness.min() > 0.75
    assert np.median(closeness) > np.median((vectors_of(result) * vectors_of(plain)).sum(axis=1))


def test_text_of_one_chunk_has_the_vector_of_the_text(client: Client) -> None:
    for mode in ("separate", "late"):
        results = client.encode([BERLIN, "One."], chunks={"mode": mode}).results
        vectors = np.concatenate([vectors_of(result) for result in results])
        np.testing.assert_allclose(vectors, client.embed([BERLIN, "One."]), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "reason", "message"),
    [
        ({"outputs": ["tokens"]}, "CONFLICTING_FIELDS", "outputs: not supported with chunks"),
        ({"pooling": "cls", "chunks": {"mode": "late"}}, "CONFLICTING_FIELDS", "chunks.mode:"),
        (
            {"chunks": {"language": "de-AT"}},
            "INVALID_FORMAT",
            "chunks.language: not a language code. Use one of ISO 639",
        ),
        ({"chunks": {"max_tokens": 300}}, "OUT_OF_RANGE", "chunks.max_tokens: out of range (300). Use 1 to 254,"),
        ({"chunks": {"overlap_tokens": 129}}, "OUT_OF_RANGE", "chunks.overlap_tokens: out of range (129). Use 0 to 1"),
        ({"chunks": {"by": "token", "merge": False}}, "CONFLICTING_FIELDS", "chunks.merge: set, but chunks.by is"),
        ({"chunks": {"by": "span"}}, "MISSING_FIELD", "inputs[0].spans: missing, but chunks.by is"),
        ({"chunks": {"by": "word"}}, "UNKNOWN_VALUE", "chunks.by: unknown value"),
        ({"chunks": {"size": 3}}, "UNKNOWN_FIELD", "chunks.size: unknown field. Remove it."),
        ({"chunks": "sentence"}, "WRONG_TYPE", "chunks: wrong type"),
        ({"chunks": {"max_tokens": "many"}}, "WRONG_TYPE", "chunks.max_tokens: wrong type"),
        ({"prompt": "word " * 260}, "TOO_LONG", "prompt: leaves no room for text (260 tokens, limit 253)"),
    ],
)
def test_errors_name_the_field(client: Client, options: dict[str, Any], reason: str, message: str) -> None:
    with pytest.raises(AttendantError) as caught:
        client.encode(BERLIN, **{"chunks": {}, **options})
    assert caught.value.reason == reason
    assert caught.value.message.startswith(message)


def test_errors_of_chunks_name_the_text(client: Client) -> None:
    text = "word " * 600
    spans = [Input(text, spans=[(0, 4), (0, 2900)])]
    for inputs, options, field in (
        (["One.", "a " * (MAX_CHUNKED_CHARACTERS // 2 + 1)], {}, "inputs[1]"),
        (["One.", "a b " * 3000], {"max_tokens": 1, "by": "token"}, "inputs[1]"),
        (["One.", "\x00"], {}, "inputs[1]"),
        (spans, {"by": "span"}, "inputs[0].spans[1]"),
        ([Input(text, spans=[(5, 9), (0, 4)])], {"by": "span"}, "inputs[0].spans[1]"),
    ):
        with pytest.raises(AttendantError) as caught:
            client.encode(inputs, chunks=options)
        assert caught.value.field == field


def test_client_splits_texts_with_too_many_chunks(client: Client) -> None:
    results = client.encode(["a b " * 1500] * 2, chunks={"by": "token", "max_tokens": 1}).results
    assert [len(result.chunks or ()) for result in results] == [3000, 3000]


def test_largest_text_is_read_whole(service: ServiceThread) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 3000
    body = {"inputs": text, "chunks": {"mode": "late"}, "encoding_format": "base64"}
    response = httpx.post(f"{service.rest}/v1/encode", json=body, timeout=120)
    (result,) = response.raise_for_status().json()["results"]
    assert sum(chunk["token_count"] for chunk in result["chunks"]) == 10 * 3000


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_embed_writes_a_row_per_chunk(tmp_path: Path, run_embed: RunEmbed, service: ServiceThread, suffix: str) -> None:
    source, out = tmp_path / "documents.jsonl", tmp_path / f"chunks{suffix}"
    rows = [{"id": "a", "title": "A", "text": LONG}, {"id": "b", "title": "B", "text": " "},
            {"id": "c", "title": None, "text": "One."}]  # fmt: skip
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--id-field", "id", "--keep", "title", "--chunk", "paragraph", "--chunk-tokens", "100", "--late")
    status, err = run_embed(source, "-o", out, *options)
    assert status == 1, err  # a row is rejected
    assert "of 2 rows to" in err
    assert json.loads((tmp_path / f"chunks{suffix}.rejected.jsonl").read_text())["id"] == "b"
    lines = out.read_text().splitlines() if suffix == ".jsonl" else []
    written = [json.loads(line) for line in lines] or pq.read_table(out).to_pylist()
    with Client(service.rest) as client:
        chunks = ChunkOptions(by="paragraph", max_tokens=100, mode="late")
        results = client.encode([LONG, "One."], chunks=chunks).results
    expected = [
        {"row": row, "id": name, "chunk": number, "start": chunk.start, "end": chunk.end, "text": chunk.text,
         "title": title}
        for (row, name, title), result in zip([(1, "a", "A"), (3, "c", None)], results, strict=True)
        for number, chunk in enumerate(result.chunks or ())
    ]  # fmt: skip
    vectors = np.array([row.pop("embedding") for row in written])
    assert written == expected
    closeness = (vectors * np.concatenate([vectors_of(result) for result in results])).sum(axis=1)
    assert closeness.min() > 0.99  # the precisions of the command and of the fixture differ


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--late"], "--late: set without --chunk"),
        (["--chunk", "token", "--one-per-chunk"], "--one-per-chunk: not supported with --chunk token"),
        (["--chunk", "sentence", "--chunk-language", "German"], "--chunk-language: not a language code ('German')"),
        (["--chunk", "token", "--chunk-language", "de"], "--chunk-language: not supported with --chunk token"),
        (["--chunk", "sentence", "-o", "x.npy"], "--chunk: not supported for NumPy files"),
        (["--chunk", "sentence", "--keep", "text"], "--keep: text is a column of the chunks"),
        (["--chunk", "sentence", "--reject-truncated"], "--reject-truncated: not supported with --chunk"),
    ],
)
def test_embed_rejects_options_that_conflict(
    tmp_path: Path, run_embed: RunEmbed, options: list[str], message: str
) -> None:
    (tmp_path / "texts.txt").write_text("One.\n")
    status, err = run_embed(tmp_path / "texts.txt", "-o", tmp_path / "x.jsonl", *options)
    assert status == 2
    assert message in err


def vectors_of(result: EncodeResult) -> Any:
    assert result.chunk_vectors is not None
    return result.chunk_vectors


def test_late_chunking_of_the_openai_api(service: ServiceThread) -> None:
    """Jina's field: the inputs are parts of one text."""
    parts = BERLIN.split(". ")
    spans, end = [], 0
    for part in parts:
        spans.append((end, end + len(part)))
        end += len(part) + 1
    with Client(service.rest) as client:
        whole = Input(" ".join(parts), spans=spans)
        expected = client.encode([whole], chunks={"by": "span", "mode": "late"}, dimensions=64).results[0]

    def post(inputs: Any, **options: Any) -> httpx.Response:
        body = {"model": "all-MiniLM-L6-v2", "input": inputs, "late_chunking": True, **options}
        return httpx.post(f"{service.rest}/v1/embeddings", json=body, timeout=60)

    data = post(parts, dimensions=64).raise_for_status().json()["data"]
    np.testing.assert_allclose([item["embedding"] for item in data], vectors_of(expected), atol=1e-5)
    for inputs, param in (([*parts, " "], "input[3]"), (["a"] * 1025, "input"), (["word " * 300, "a"], "input[0]")):
        response = post(inputs)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_embed_reads_titles_before_texts_and_chunks(
    tmp_path: Path, run_embed: RunEmbed, service: ServiceThread, suffix: str
) -> None:
    rows = [("Berlin", BERLIN), ("", "One."), ("word " * 300, "Its title is too long."), ("Two", "Two.")]
    source, out = tmp_path / f"documents{suffix}", tmp_path / "chunks.jsonl"
    columns = {"title": [title for title, _ in rows], "text": [text for _, text in rows]}
    if suffix == ".parquet":
        pq.write_table(pa.table(columns), source)
    elif suffix == ".csv":
        with source.open("w", newline="") as file:
            csv.writer(file).writerows([("title", "text"), *rows])
    else:
        source.write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in rows))
    options = ("--title-field", "title", "--chunk", "sentence", "--one-per-chunk")
    status, err = run_embed(source, "-o", out, *options)
    assert status == 1, err
    (rejected,) = (tmp_path / "chunks.jsonl.rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected) == {
        "row": 3, "error": "text: its title leaves no room for text. Shorten the title.",
    }  # fmt: skip
    expected = []
    with Client(service.rest) as client:
        for title, text in (rows[0], rows[1], rows[3]):
            prompt = f"{title}: " if title else ""
            (result,) = client.encode(text, chunks={"merge": False}, prompt=prompt).results
            expected += list(vectors_of(result))
    vectors = [json.loads(line)["embedding"] for line in out.read_text().splitlines()]
    closeness = (np.array(vectors) * np.array(expected)).sum(axis=1)
    assert closeness.min() > 0.99
