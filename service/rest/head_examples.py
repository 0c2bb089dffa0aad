"""OpenAPI examples of rerank, classify, token-classify and fill-mask, by operation."""

from typing import Any

from service.rest.compatible_examples import MODEL, REQUEST_ID, Example

HEAD = {"model": MODEL, "precision": "float32"}
UNIT = {"text": "money", "start": 0, "end": 5, "segment": 0, "special": False}

RERANK_REQUEST: Example = {
    "query": "how to open a bank account",
    "documents": ["The river bank is closed.", "Opening an account takes ten minutes."],
    "effect": "occlusion",
    "explain_top": 1,
}
RERANK_RESPONSE: Example = (
    {"id": REQUEST_ID, "object": "list"}
    | HEAD
    | {
        "scored_by": "cross_encoder",
        "results": [
            {
                "index": 1,
                "relevance_score": 0.98,
                "explanation": {
                    "query_units": [UNIT],
                    "document_units": [UNIT],
                    "query_effects": [0.21],
                    "document_effects": [0.35],
                },
            },
            {"index": 0, "relevance_score": 0.02},
        ],
        "usage": {"tokens": 31, "truncated_inputs": 0, "total_tokens": 31},
        "meta": {
            "api_version": {"version": "1"},
            "billed_units": {"input_tokens": 31},
            "tokens": {"input_tokens": 31},
        },
    }
)
CLASSIFY_REQUEST: Example = {"inputs": ["The parcel has not arrived."], "top_k": 2}
CLASSIFY_RESPONSE: Example = HEAD | {
    "results": [
        {
            "token_count": 8,
            "truncated": False,
            "labels": [{"label": "delivery", "score": 0.97}, {"label": "billing", "score": 0.02}],
        }
    ],
    "usage": {"tokens": 8, "truncated_inputs": 0},
}
FILL_MASK_REQUEST: Example = {"inputs": ["She sat on the [MASK] of the river."], "top_k": 2}
FILL_MASK_RESPONSE: Example = HEAD | {
    "results": [
        {
            "token_count": 11,
            "truncated": False,
            "positions": [
                {
                    "position": 5,
                    "start": 15,
                    "end": 21,
                    "segment": 0,
                    "layers": [
                        {
                            "layer": 6,
                            "predictions": [
                                {"token": "bank", "id": 2924, "probability": 0.71},
                                {"token": "edge", "id": 3341, "probability": 0.12},
                            ],
                        }
                    ],
                }
            ],
        }
    ],
    "usage": {"tokens": 11, "truncated_inputs": 0},
}
TOKEN_CLASSIFY_REQUEST: Example = {"inputs": ["Ada Lovelace lived in London."]}
TOKEN_CLASSIFY_RESPONSE: Example = HEAD | {
    "results": [
        {
            "token_count": 9,
            "truncated": False,
            "entities": [
                {"label": "PER", "score": 0.99, "text": "Ada Lovelace", "start": 0, "end": 12, "segment": 0},
                {"label": "LOC", "score": 0.98, "text": "London", "start": 22, "end": 28, "segment": 0},
            ],
        }
    ],
    "usage": {"tokens": 9, "truncated_inputs": 0},
}

HUGGINGFACE_FILL_MASK_REQUEST: Example = {
    "inputs": "She sat on the [MASK] of the river.",
    "parameters": {"top_k": 1},
}
HUGGINGFACE_FILL_MASK_RESPONSE = [
    {"score": 0.71, "token": 2924, "token_str": "bank", "sequence": "She sat on the bank of the river."}
]
HUGGINGFACE_ENTITIES_REQUEST: Example = {"inputs": "Ada Lovelace lived in London."}
HUGGINGFACE_ENTITIES_RESPONSE = [
    {"entity_group": "PER", "score": 0.99, "word": "Ada Lovelace", "start": 0, "end": 12},
    {"entity_group": "LOC", "score": 0.98, "word": "London", "start": 22, "end": 28},
]

REQUESTS: dict[str, Example] = {
    "rerank": RERANK_REQUEST,
    "classify": CLASSIFY_REQUEST,
    "token_classify": TOKEN_CLASSIFY_REQUEST,
    "fill_mask": FILL_MASK_REQUEST,
    "huggingface_fill_mask": HUGGINGFACE_FILL_MASK_REQUEST,
    "huggingface_token_classification": HUGGINGFACE_ENTITIES_REQUEST,
}
RESPONSES: dict[str, Any] = {
    "rerank": RERANK_RESPONSE,
    "classify": CLASSIFY_RESPONSE,
    "token_classify": TOKEN_CLASSIFY_RESPONSE,
    "fill_mask": FILL_MASK_RESPONSE,
    "huggingface_fill_mask": HUGGINGFACE_FILL_MASK_RESPONSE,
    "huggingface_token_classification": HUGGINGFACE_ENTITIES_RESPONSE,
}
