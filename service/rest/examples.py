"""Examples of the OpenAPI document: requests and shortened responses, by operation."""

from typing import Any

from service.rest import compatible_examples, head_examples
from service.rest.head_examples import HEAD, UNIT

Example = dict[str, Any]

MODEL = "all-MiniLM-L6-v2"
TEXT = "money bank grows"
TOKEN = {"id": 2769, "text": "money", "start": 0, "end": 5, "word_index": 0, "segment": 0, "special": False}
WORD = {"text": "money", "start": 0, "end": 5, "segment": 0}

ENCODE_REQUEST: Example = {"inputs": [TEXT, {"text": "river bank floods"}], "outputs": ["pooled"]}
ENCODE_RESPONSE: Example = HEAD | {
    "results": [{"token_count": 5, "truncated": False, "pooled": [0.0316, -0.0121, 0.0428]}],
    "usage": {"tokens": 5, "truncated_inputs": 0},
    "prompt_name": None,
    "prompt": None,
}
TOKENIZE_REQUEST: Example = {"inputs": TEXT}
TOKENIZE_RESPONSE: Example = {
    "model": MODEL,
    "results": [{"token_count": 5, "tokens": [TOKEN], "words": [WORD]}],
    "usage": {"tokens": 5, "truncated_inputs": 0},
}
ATTEND_REQUEST: Example = {"inputs": TEXT, "unit": "word", "layers": [-1], "head_reduce": "mean", "decimals": 3}
ATTEND_RESPONSE: Example = HEAD | {
    "results": [
        {
            "truncated": False,
            "units": [UNIT],
            "rows": [0],
            "columns": [0],
            "maps": [
                {
                    "layer": 6,
                    "head": None,
                    "matrix": [[1.0]],
                    "excluded_mass": [0.0],
                    "bias_share": None,
                    "empty_rows": [],
                }
            ],
        }
    ],
    "usage": {"tokens": 5, "truncated_inputs": 0},
}
COMPARE_REQUEST: Example = {
    "occurrences": [
        {"text": "She sat on the bank of the river.", "word_index": 4},
        {"text": "He cashed a check at the bank.", "span": [25, 29]},
    ],
    "layers": [0, -1],
    "top_contributors": 2,
}
COMPARE_RESPONSE: Example = HEAD | {
    "occurrences": [
        {
            "text": "bank",
            "start": 15,
            "end": 19,
            "contributors": [{"text": "river", "start": 27, "end": 32, "share": 0.31}],
        }
    ],
    "static": [[1.0, 1.0], [1.0, 1.0]],
    "layers": [{"layer": 6, "cosine": [[1.0, 0.42], [0.42, 1.0]], "centered": [[1.0, 0.21], [0.21, 1.0]]}],
    "usage": {"tokens": 20, "truncated_inputs": 0},
}
SIMILARITY_REQUEST: Example = {
    "queries": "how to open a bank account",
    "documents": ["Opening an account takes ten minutes.", "The river bank is closed."],
    "explain": True,
    "unit": "word",
    "top_k": 1,
}
SIMILARITY_RESPONSE: Example = HEAD | {
    "similarity": "cosine",
    "scores": [[0.6]],
    "queries": [{"token_count": 3, "truncated": False, "units": [UNIT]}],
    "documents": [{"token_count": 3, "truncated": False, "units": [UNIT]}],
    "pairs": [
        {
            "query": 0,
            "document": 0,
            "score": 0.6,
            "contributions": {"query_units": [0], "document_units": [0], "values": [0.4]},
            "rest": {"special_tokens": 0.2, "prompt": 0.0, "bias": 0.0, "dropped": 0.0},
            "query_effects": None,
            "document_effects": None,
        }
    ],
    "contributions_unavailable": None,
    "usage": {"tokens": 6, "truncated_inputs": 0},
    "query_prompt_name": None,
    "query_prompt": None,
    "document_prompt_name": None,
    "document_prompt": None,
}
EMBEDDINGS_REQUEST: Example = {"model": MODEL, "input": [TEXT, "river bank floods"]}
EMBEDDINGS_RESPONSE: Example = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.0316, -0.0121, 0.0428]}],
    "model": MODEL,
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
TEI_REQUEST: Example = {"inputs": [TEXT, "river bank floods"], "truncate": True}
TEI_EMBEDDINGS = [[0.0316, -0.0121, 0.0428]]
TEI_SIMILARITY_REQUEST: Example = {"inputs": {"source_sentence": TEXT, "sentences": ["river bank floods"]}}
TEI_INFO: Example = {
    "model_id": f"sentence-transformers/{MODEL}",
    "model_sha": None,
    "model_dtype": "float32",
    "served_model_name": MODEL,
    "model_type": {"embedding": {"pooling": "mean"}},
    "max_concurrent_requests": 2048,
    "max_input_length": 256,
    "max_batch_tokens": 512,
    "max_batch_requests": None,
    "max_client_batch_size": 256,
    "auto_truncate": True,
    "tokenization_workers": 2,
    "version": "0.1.0",
    "sha": None,
    "docker_label": None,
}
LIMITS = {
    "max_inputs": 256,
    "max_documents": 1000,
    "max_spans_per_input": 1024,
    "max_spans_per_request": 4096,
    "max_input_characters": 16384,
    "max_request_bytes": 2097152,
    "max_grpc_message_bytes": 8388608,
    "max_pending_request_bytes": 268435456,
    "max_connections": 2048,
    "max_grpc_streams": 256,
    "max_response_bytes": 67108864,
    "max_explain_bytes": 1073741824,
    "max_queue_ms": 2000,
    "max_explain_queue_ms": 2000,
    "max_queue_tokens": 262144,
    "max_explain_queue_tokens": 65536,
    "max_timeout_ms": 60000,
    "header_timeout_ms": 10000,
    "body_timeout_ms": 15000,
}
SERVED_MODEL: Example = {
    "id": MODEL,
    "object": "model",
    "created": 0,
    "owned_by": "attendant",
    "name": MODEL,
    "aliases": [],
    "digest": "sha256:071c4adece61b1b2e509514b88ca6b5fa167a36ca19ce1176cdcf622eff25877",
    "source": f"sentence-transformers/{MODEL}",
    "revision": None,
    "license": "apache-2.0",
    "model_type": "bert",
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "hidden_size": 384,
    "dimensions": 384,
    "vocab_size": 30522,
    "max_input_tokens": 256,
    "role_max_tokens": {},
    "truncation_side": "right",
    "pooling": "mean",
    "normalize": True,
    "prompts": {},
    "default_prompt_name": None,
    "precision": "float32",
    "provider": "openvino",
    "threads": 2,
    "backend_reason": "CPU has no AMX",
    "length_buckets": [64, 128, 256, 512],
    "layers": [0, 1, 2, 3, 4, 5, 6],
    "operations": ["encode", "attend", "compare", "similarity", "rerank", "tokenize"],
    "outputs": ["pooled", "tokens", "words", "spans", "static"],
    "labels": [],
    "token_labels": [],
    "mask_token": None,
    "multi_vector": None,
    "sparse": None,
    "attention": "bidirectional",
    "attention_kinds": ["probs", "scores", "norm", "block_norm", "projection"],
    "limits": LIMITS,
    "similarity": "cosine",
    "training": None,
    "evaluations": [],
    "version": "0.1.0",
}
OIP_SERVER: Example = {"name": "attendant", "version": "0.1.0", "extensions": ["binary_tensor_data", "statistics"]}
OIP_MODEL: Example = {
    "name": MODEL,
    "versions": ["1"],
    "platform": "attendant",
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "pooled", "datatype": "FP32", "shape": [-1, 384]}],
}
OIP_CONFIG: Example = {
    "name": MODEL,
    "platform": "attendant",
    "backend": "attendant",
    "max_batch_size": 0,
    "input": [{"name": "text", "data_type": "TYPE_STRING", "dims": [-1], "optional": True}],
    "output": [{"name": "pooled", "data_type": "TYPE_FP32", "dims": [-1, 384]}],
    "model_transaction_policy": {"decoupled": False},
}
OIP_MODEL_READY: Example = {"name": MODEL, "ready": True}
OIP_STAGE = {"count": 2, "ns": 1_500_000}
OIP_STAGES = ("fail", "queue", "compute_input", "compute_infer", "compute_output")
OIP_STATISTICS: Example = {
    "model_stats": [
        {
            "name": MODEL,
            "version": "1",
            "inference_count": 3,
            "execution_count": 2,
            "inference_stats": {"success": {"count": 2}, **dict.fromkeys(OIP_STAGES, OIP_STAGE)},
        }
    ]
}
OIP_INFER_REQUEST: Example = {
    "id": "42",
    "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": [TEXT, "river bank floods"]}],
    "outputs": [{"name": "pooled"}],
    "parameters": {"dimensions": 2},
}
OIP_INFER_RESPONSE: Example = {
    "model_name": MODEL,
    "model_version": "1",
    "id": "42",
    "outputs": [{"name": "pooled", "datatype": "FP32", "shape": [2, 2], "data": [0.99, -0.14, 0.91, 0.41]}],
}
STATUS: Example = {"status": "ok"}

REQUESTS: dict[str, Example] = {
    "encode": ENCODE_REQUEST,
    "tokenize": TOKENIZE_REQUEST,
    "attend": ATTEND_REQUEST,
    "compare": COMPARE_REQUEST,
    "similarity": SIMILARITY_REQUEST,
    "create_embeddings": EMBEDDINGS_REQUEST,
    "tei_root": TEI_REQUEST,
    "tei_embed": TEI_REQUEST,
    "tei_embed_all": TEI_REQUEST,
    "tei_embed_sparse": TEI_REQUEST,
    "tei_rerank": {"query": TEXT, "texts": ["river bank floods"]},
    "tei_predict": {"inputs": TEXT},
    "tei_similarity": TEI_SIMILARITY_REQUEST,
    "tei_tokenize": {"inputs": TEXT},
    "tei_decode": {"ids": [101, 2769, 2924, 102]},
    **head_examples.REQUESTS,
    **compatible_examples.REQUESTS,
    "oip_repository_index": {"ready": True},
    "oip_load": {},
    "oip_unload": {"parameters": {"unload_dependents": False}},
    "oip_model_infer": OIP_INFER_REQUEST,
    "oip_model_version_infer": OIP_INFER_REQUEST,
}
RESPONSES: dict[str, Any] = {
    "encode": ENCODE_RESPONSE,
    "tokenize": TOKENIZE_RESPONSE,
    "attend": ATTEND_RESPONSE,
    "compare": COMPARE_RESPONSE,
    "similarity": SIMILARITY_RESPONSE,
    "create_embeddings": EMBEDDINGS_RESPONSE,
    "list_models": {"object": "list", "data": [SERVED_MODEL]},
    "retrieve_model": SERVED_MODEL,
    "get_model": SERVED_MODEL,
    "tei_root": TEI_EMBEDDINGS,
    "tei_embed": TEI_EMBEDDINGS,
    "tei_embed_all": [TEI_EMBEDDINGS],
    "tei_embed_sparse": [[{"index": 2769, "value": 1.5}]],
    "tei_rerank": [{"index": 0, "score": 0.9}],
    "tei_predict": [{"score": 0.9, "label": "positive"}],
    "tei_similarity": [0.42],
    "tei_tokenize": [[{"id": 2769, "text": "money", "special": False, "start": 0, "stop": 5}]],
    "tei_decode": ["money bank"],
    "tei_info": TEI_INFO,
    **head_examples.RESPONSES,
    **compatible_examples.RESPONSES,
    "oip_live": {"live": True},
    "oip_ready": {"ready": True},
    "oip_server_metadata": OIP_SERVER,
    "oip_statistics": OIP_STATISTICS,
    "oip_repository_index": [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}],
    "oip_load": {},
    "oip_unload": {},
    **dict.fromkeys(("oip_model_infer", "oip_model_version_infer"), OIP_INFER_RESPONSE),
    **dict.fromkeys(("oip_model_metadata", "oip_model_version_metadata"), OIP_MODEL),
    **dict.fromkeys(("oip_model_ready", "oip_model_version_ready"), OIP_MODEL_READY),
    **dict.fromkeys(("oip_model_config", "oip_model_version_config"), OIP_CONFIG),
    **dict.fromkeys(("oip_model_statistics", "oip_model_version_statistics"), OIP_STATISTICS),
    "livez": STATUS,
    "readyz": STATUS,
}


def add_examples(operation: dict[str, Any]) -> None:
    """Add the examples to an operation of the document. FastAPI would drop the nulls in them."""
    name = operation["operationId"]
    if name in REQUESTS:
        operation["requestBody"]["content"]["application/json"]["example"] = REQUESTS[name]
    if name in RESPONSES:
        operation["responses"]["200"]["content"]["application/json"]["example"] = RESPONSES[name]
