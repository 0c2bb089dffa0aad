"""Recipes in docs/vector-databases.md: Qdrant's local mode, and PostgreSQL with pgvector."""

import re
from pathlib import Path

import pytest

from tests.clients.environments import ClientEnvironment
from tests.conftest import ROOT, run_python
from tests.serving import ServiceThread

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "vector-databases.md").read_text()
QDRANT = """
import contextlib, io, os
os.chdir(arguments["directory"])
with contextlib.redirect_stdout(io.StringIO()) as printed:
    exec(arguments["script"])
send(printed.getvalue().splitlines())
"""
POSTGRES = """
import json, os, subprocess
from pathlib import Path
import httpx, pgserver
os.chdir(arguments["directory"])
server = pgserver.get_server("database")
try:
    response = httpx.post(f"{rest}/v1/encode", json={"inputs": "a ship on the water"})
    query = json.dumps(response.json()["results"][0]["pooled"])
    (psql,) = Path(pgserver.__file__).parent.rglob("bin/psql")
    script = arguments["script"].replace("$1", f"'{query}'").replace("$2", "'the tide at the river'")
    command = [str(psql), server.get_uri(), "-v", "ON_ERROR_STOP=1", "--no-align", "--tuples-only", "--quiet"]
    output = subprocess.run(command, input=script, text=True, capture_output=True, check=True).stdout
finally:
    server.cleanup()
send([line.split("|") for line in output.splitlines()])
"""


def code_blocks(heading: str, language: str) -> str:
    """Return the code of a section, up to the next heading."""
    (section,) = re.findall(rf"^##+ {heading}\n(.*?)(?=^##+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return "".join(re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> ClientEnvironment:
    return ClientEnvironment.create("vector_databases", tmp_path_factory.mktemp("environment") / "vector_databases")


@pytest.fixture(params=["--keep=text", "--chunk=sentence"])
def vectors(tmp_path: Path, default_artifact: Path, request: pytest.FixtureRequest) -> Path:
    """Return the directory with the files written by the page's first command, or by one that splits texts."""
    (line,) = re.findall(r"^printf '%s\\n' (.*) > texts\.txt$", PAGE, re.MULTILINE)
    (tmp_path / "texts.txt").write_text("\n".join(re.findall(r'"(.*?)"', line)) + "\n")
    files = [str(tmp_path / name) for name in ("texts.txt", "vectors.jsonl")]
    options = ("-o", files[1], request.param)
    result = run_python("-m", "service", "embed", files[0], *options, model_dir=default_artifact)
    assert result.returncode == 0, result.stderr
    return tmp_path


def expected_hits() -> list[tuple[float, str]]:
    block = code_blocks("Qdrant", "text")
    return [(float(score), text) for score, text in (line.split(" ", 1) for line in block.splitlines())]


def test_qdrant_finds_the_nearest_texts(environment: ClientEnvironment, vectors: Path, service: ServiceThread) -> None:
    code = code_blocks("Qdrant", "python").replace("http://127.0.0.1:8080", service.rest)
    for _ in range(2):  # the recipe may be repeated
        printed = environment.call(QDRANT, rest=service.rest, grpc=service.grpc, directory=str(vectors), script=code)
        for line, (score, text) in zip(printed, expected_hits(), strict=True):
            assert line.split(" ", 1)[1] == text
            assert float(line.split()[0]) == pytest.approx(score, abs=0.01)  # the precision depends on the CPU


def test_pgvector_finds_the_nearest_texts(
    environment: ClientEnvironment, vectors: Path, service: ServiceThread
) -> None:
    texts = (vectors / "texts.txt").read_text().splitlines()
    for _ in range(2):
        rows = environment.call(
            POSTGRES,
            rest=service.rest,
            grpc=service.grpc,
            texts=[],
            directory=str(vectors),
            script=code_blocks("PostgreSQL with pgvector", "sql"),
        )
        for (number, content, cosine), (score, text) in zip(rows, expected_hits(), strict=False):
            assert (content, texts[int(number) - 1]) == (text, text)
            assert float(cosine) == pytest.approx(score, abs=0.01)
        assert len(rows) == len(texts)


def test_qdrant_fuses_dense_vectors_and_bm25(
    environment: ClientEnvironment, vectors: Path, service: ServiceThread
) -> None:
    code = code_blocks("Dense vectors and BM25", "python").replace("http://127.0.0.1:8080", service.rest)
    for _ in range(2):
        printed = environment.call(QDRANT, rest=service.rest, grpc=service.grpc, directory=str(vectors), script=code)
        assert printed == code_blocks("Dense vectors and BM25", "text").splitlines()


def test_pgvector_fuses_dense_vectors_and_words(
    environment: ClientEnvironment, vectors: Path, service: ServiceThread
) -> None:
    script = code_blocks("PostgreSQL with pgvector", "sql") + code_blocks("With full-text search", "sql")
    for _ in range(2):
        rows = environment.call(
            POSTGRES, rest=service.rest, grpc=service.grpc, texts=[], directory=str(vectors), script=script
        )
        fused = rows[len((vectors / "texts.txt").read_text().splitlines()) :]
        # The query's words are in two texts; the third one is among the nearest only.
        assert [content for _, content, _ in fused] == [
            "river bank flows", "the boat waits for the tide", "money bank grows",
        ]  # fmt: skip
        assert float(fused[0][2]) == pytest.approx(2 / 61, abs=6e-4)
        assert float(fused[2][2]) == pytest.approx(1 / 63, abs=1e-4)
