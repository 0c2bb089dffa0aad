"""OpenAPI examples of Cohere's API: requests and shortened responses, by operation."""

from typing import Any

Example = dict[str, Any]

MODEL = "all-MiniLM-L6-v2"
TEXT = "money bank grows"
REQUEST_ID = "3b9950e19c38cfea"

COHERE_META = {
    "api_version": {"version": "2"},
    "billed_units": {"input_tokens": 31},
    "tokens": {"input_tokens": 31},
}
COHERE_RERANK_REQUEST: Example = {
    "model": MODEL,
    "query": "how to open a bank account",
    "documents": ["The river bank is closed.", "Opening an account takes ten minutes."],
    "top_n": 1,
}
COHERE_RERANK_RESPONSE: Example = {
    "id": REQUEST_ID,
    "results": [{"index": 1, "relevance_score": 0.98}],
    "meta": COHERE_META,
}
COHERE_EMBED_REQUEST: Example = {
    "model": MODEL,
    "texts": [TEXT],
    "input_type": "search_document",
    "embedding_types": ["float"],
}
COHERE_EMBED_RESPONSE: Example = {
    "id": REQUEST_ID,
    "response_type": "embeddings_by_type",
    "embeddings": {"float": [[0.0316, -0.0121, 0.0428]]},
    "texts": [TEXT],
    "meta": COHERE_META,
}

REQUESTS: dict[str, Example] = {
    "cohere_rerank": COHERE_RERANK_REQUEST,
    "cohere_embed": COHERE_EMBED_REQUEST,
}
RESPONSES: dict[str, Example] = {
    "cohere_rerank": COHERE_RERANK_RESPONSE,
    "cohere_embed": COHERE_EMBED_RESPONSE,
}
