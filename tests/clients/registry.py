"""Third-party clients covered by the tests. `make docs` generates docs/clients.md from this list."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.clients import snippets

REQUIREMENTS = Path(__file__).parent / "requirements"
PREAMBLE = """\
rest, grpc_address = "http://127.0.0.1:8080", "127.0.0.1:8081"
texts = ["money bank grows", "river bank flows"]
"""


@dataclass(frozen=True)
class Client:
    """A client with its own environment.

    Attributes:
        package: Name of the package on PyPI.
        environment: Name of the file in `requirements` that pins the package.
        api: The server API that it uses.
        checks: What its test compares besides the native API's numbers.
        snippet: Code that the test runs first, using the variables in `PREAMBLE`.
    """

    package: str
    environment: str
    api: str
    checks: str
    snippet: str

    @property
    def version(self) -> str:
        pins = (REQUIREMENTS / f"{self.environment}.txt").read_text()
        match = re.search(rf"^{re.escape(self.package)}(?:\[[^\]]*\])?==(\S+)", pins, re.MULTILINE)
        assert match is not None, f"{self.environment}.txt does not pin {self.package}"
        return match[1]


CLIENTS = (
    Client(
        "openai",
        "openai",
        "OpenAI",
        "base64 and float, dimensions, usage, models, sync and async, error classes, API key",
        snippets.OPENAI,
    ),
    Client(
        "langchain-openai",
        "langchain_openai",
        "OpenAI",
        "documents and queries, sync and async, dimensions; the error without `check_embedding_ctx_length=False`",
        snippets.LANGCHAIN_OPENAI,
    ),
    Client(
        "infinity-client",
        "infinity_client",
        "infinity",
        "embeddings, rerank, classify and models, sync and async, dimensions, errors; the OpenAI API with the base URL "
        "of `/v1`",
        snippets.INFINITY_CLIENT,
    ),
    Client(
        "huggingface-hub",
        "huggingface_hub",
        "text-embeddings-inference",
        "all options of `feature_extraction`, sync and async, similarity, tokens, `fill_mask`, `token_classification`, "
        "information, health, errors",
        snippets.HUGGINGFACE_HUB,
    ),
    Client(
        "langchain-huggingface",
        "langchain",
        "text-embeddings-inference",
        "documents and queries, sync and async",
        snippets.LANGCHAIN_HUGGINGFACE,
    ),
    Client(
        "llama-index-embeddings-text-embeddings-inference",
        "llama_index",
        "text-embeddings-inference",
        "texts and queries, sync and async",
        snippets.LLAMA_INDEX,
    ),
    Client(
        "huggingface-api-haystack",
        "haystack",
        "text-embeddings-inference",
        "documents and queries; the ranker over REST and gRPC, sync and async, and its error",
        snippets.HAYSTACK,
    ),
    Client(
        "tei-client",
        "tei_client",
        "text-embeddings-inference",
        "gRPC: embed, embed_all, classify, rerank, tokenize and decode, sync and async, information, errors",
        snippets.TEI_CLIENT,
    ),
    Client(
        "llama-index-postprocessor-tei-rerank",
        "llama_index_tei_rerank",
        "text-embeddings-inference",
        "texts up to the token limit and longer ones",
        snippets.LLAMA_INDEX_TEI_RERANK,
    ),
    Client(
        "cohere",
        "cohere",
        "Cohere",
        "`ClientV2` and `Client`, sync and async; embedding types, dimensions, truncation, returned documents, "
        "`rank_fields`, error classes",
        snippets.COHERE,
    ),
    Client(
        "langchain-cohere",
        "langchain_cohere",
        "Cohere",
        "the order of the documents; `rank_fields`, `top_n` and `max_tokens_per_doc`",
        snippets.LANGCHAIN_COHERE,
    ),
    Client(
        "cohere-haystack",
        "cohere_haystack",
        "Cohere",
        "the order of the documents; `top_k`, sync and async",
        snippets.COHERE_HAYSTACK,
    ),
    Client(
        "jina-haystack",
        "jina_haystack",
        "Jina",
        "the order of the documents; `top_k`; embeddings from `/v1/embeddings`",
        snippets.JINA_HAYSTACK,
    ),
    Client(
        "llama-index-postprocessor-cohere-rerank",
        "llama_index_cohere_rerank",
        "Cohere",
        "the order of the nodes; `top_n`",
        snippets.LLAMA_INDEX_COHERE_RERANK,
    ),
    Client(
        "tritonclient",
        "tritonclient",
        "Open Inference Protocol",
        "HTTP and gRPC, sync, async and streams; texts, pairs and token ids; scores and sparse vectors; binary and "
        "JSON tensors; compression; metadata, configuration, statistics, index, errors",
        snippets.TRITONCLIENT,
    ),
    Client(
        "kserve",
        "kserve",
        "Open Inference Protocol",
        "REST and gRPC; texts and token ids; raw and typed tensors; parameters, readiness, errors",
        snippets.KSERVE,
    ),
    Client(
        "grpcio-health-checking",
        "grpcio_health_checking",
        "gRPC health checking",
        "`Check` and `Watch` for the server and for the service; an unknown service",
        snippets.GRPC_HEALTH,
    ),
    Client(
        "grpcio-reflection",
        "grpcio_reflection",
        "gRPC reflection",
        "services, descriptors and calls without generated stubs, like grpcurl, with v1 and v1alpha",
        snippets.GRPC_REFLECTION,
    ),
)


def find_client(package: str) -> Client:
    return next(client for client in CLIENTS if client.package == package)


def describe_clients() -> str:
    """Return docs/clients.md."""
    lines = [
        "# Clients",
        "",
        "Third-party clients that work with Attendant. `make test-slow` installs each one in a separate environment,",
        "runs its snippet, and compares the numbers with the native API. Attendant's own package is",
        "[attendant-client](../client/README.md). `make docs` generates this page from `tests/clients/registry.py`.",
        "",
        "| client | version | API | also checked |",
        "|---|---|---|---|",
    ]
    for client in CLIENTS:
        anchor = re.sub(r"[^a-z0-9-]", "", client.package)
        lines.append(f"| [{client.package}](#{anchor}) | {client.version} | {client.api} | {client.checks} |")
    lines += ["", "The snippets use these variables:", "", "```python", PREAMBLE.rstrip(), "```"]
    for client in CLIENTS:
        lines += ["", f"## {client.package}", "", "```python", client.snippet.strip(), "```"]
    return "\n".join(lines) + "\n"
