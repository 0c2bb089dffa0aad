"""OpenAPI examples of the APIs of Cohere, vLLM and infinity: requests and shortened responses, by operation."""

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
VLLM_SCORE_REQUEST: Example = {"model": MODEL, "text_1": TEXT, "text_2": ["river bank floods"]}
VLLM_HEAD = {"id": REQUEST_ID, "object": "list", "created": 1785542400, "model": MODEL}
VLLM_USAGE = {"usage": {"prompt_tokens": 10, "total_tokens": 10}}
VLLM_SCORE_RESPONSE: Example = VLLM_HEAD | {"data": [{"index": 0, "object": "score", "score": 0.42}]} | VLLM_USAGE
VLLM_CLASSIFY_RESPONSE: Example = (
    VLLM_HEAD | {"data": [{"index": 0, "label": "positive", "probs": [0.1, 0.9], "num_classes": 2}]} | VLLM_USAGE
)
VLLM_POOLING_RESPONSE: Example = (
    VLLM_HEAD | {"data": [{"index": 0, "object": "pooling", "data": [0.0316, -0.0121, 0.0428]}]} | VLLM_USAGE
)
INFINITY_HEAD = {"id": REQUEST_ID, "created": 1785542400, "model": MODEL} | VLLM_USAGE
INFINITY_MODEL: Example = {
    "id": MODEL,
    "object": "model",
    "owned_by": "infinity",
    "created": 0,
    "stats": {"queue_fraction": 0.0, "queue_absolute": 0, "batch_size": 512},
    "backend": "openvino",
    "capabilities": ["embed", "rerank"],
}

REQUESTS: dict[str, Example] = {
    "cohere_rerank": COHERE_RERANK_REQUEST,
    "cohere_embed": COHERE_EMBED_REQUEST,
    **dict.fromkeys(("vllm_score", "vllm_v1_score"), VLLM_SCORE_REQUEST),
    "vllm_classify": {"model": MODEL, "input": [TEXT]},
    "vllm_pooling": {"model": MODEL, "input": [TEXT], "task": "embed"},
    "infinity_embeddings": {"model": MODEL, "input": [TEXT]},
    "infinity_rerank": {"model": MODEL, "query": TEXT, "documents": ["river bank floods"]},
    "infinity_classify": {"model": MODEL, "input": [TEXT]},
}
RESPONSES: dict[str, Example] = {
    "cohere_rerank": COHERE_RERANK_RESPONSE,
    "cohere_embed": COHERE_EMBED_RESPONSE,
    **dict.fromkeys(("vllm_score", "vllm_v1_score"), VLLM_SCORE_RESPONSE),
    "vllm_classify": VLLM_CLASSIFY_RESPONSE,
    "vllm_pooling": VLLM_POOLING_RESPONSE,
    "infinity_embeddings": INFINITY_HEAD
    | {"object": "list", "data": [{"object": "embedding", "embedding": [0.0316, -0.0121, 0.0428], "index": 0}]},
    "infinity_rerank": INFINITY_HEAD | {"object": "rerank", "results": [{"relevance_score": 0.42, "index": 0}]},
    "infinity_classify": INFINITY_HEAD | {"object": "classify", "data": [[{"score": 0.9, "label": "positive"}]]},
    "infinity_models": {"object": "list", "data": [INFINITY_MODEL]},
}
