"""Well-known models per architecture, for `attendant-model list` and docs/models.md.

`config` contains the keys of the published config.json that determine the architecture. The tests build each encoder
from them and compare its number of parameters with the published one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from model.artifact.manifest import Pooling

LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
HIDDEN = ("hidden_size", "dim", "n_embd", "d_model")
"""Keys of config.json, each with alternative names."""
Proof = Literal["published weights", "random weights"]
Task = Literal[
    "retrieval", "similarity", "rerank", "sparse", "multi-vector", "classification", "zero-shot", "token classification"
]
TASKS: tuple[Task, ...] = get_args(Task)
MULTILINGUAL = "multilingual"


@dataclass(frozen=True)
class KnownModel:
    """A published model.

    `millions` is the number of parameters without pooler and heads; `languages` is a code or `MULTILINGUAL`. `proof`
    tells what this project's tests run: the published weights, or tiny random weights of the architecture compared with
    transformers.
    """

    hub_id: str
    config: Mapping[str, Any]
    millions: float
    max_input_tokens: int
    pooling: Pooling
    prompts: str
    license: str
    proof: Proof = "random weights"
    tasks: tuple[Task, ...] = ("retrieval",)
    languages: str = "en"

    @property
    def model_type(self) -> str:
        """The architecture's `model_type` in config.json."""
        return str(self.config["model_type"])

    @property
    def shape(self) -> tuple[int, int]:
        """The number of layers and the hidden size."""
        layers, size = (next(self.config[key] for key in keys if key in self.config) for keys in (LAYERS, HIDDEN))
        return int(layers), int(size)

    def suits(self, task: Task | None, language: str | None) -> bool:
        """Return whether the model is intended for a task and a language; None matches any."""
        speaks = language is None or self.languages in (MULTILINGUAL, language)
        return speaks and (task is None or task in self.tasks)


def _bert(model_type: str, layers: int, size: int, vocab: int, **options: Any) -> dict[str, Any]:
    return {
        "model_type": model_type, "hidden_size": size, "num_hidden_layers": layers, "num_attention_heads": size // 64,
        "intermediate_size": 4 * size, "vocab_size": vocab, "hidden_act": "gelu", "max_position_embeddings": 512,
        **options,
    }  # fmt: skip


MINILM, BERT_BASE = _bert("bert", 6, 384, 30522, num_attention_heads=12), _bert("bert", 12, 768, 30522)
XLM_R = {"max_position_embeddings": 8194, "type_vocab_size": 1, "pad_token_id": 1}
XLM_R_LARGE = _bert("xlm-roberta", 24, 1024, 250002, **XLM_R)
GTE = {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "max_position_embeddings": 8192}
QWEN3 = {
    "model_type": "qwen3", "hidden_act": "silu", "head_dim": 128, "num_key_value_heads": 8, "rope_theta": 1000000,
    "max_position_embeddings": 32768, "use_sliding_window": False, "attention_bias": False,
}  # fmt: skip
QWEN3_SMALL = QWEN3 | {
    "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072,
    "vocab_size": 151669,
}  # fmt: skip
MODERNBERT = {
    "model_type": "modernbert", "vocab_size": 50368, "global_attn_every_n_layers": 3, "local_attention": 128,
    "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "position_embedding_type": "absolute",
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert", "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522,
    "activation": "gelu", "max_position_embeddings": 512,
}  # fmt: skip
T5_BASE = {
    "model_type": "t5", "d_model": 768, "num_layers": 12, "num_heads": 12, "d_kv": 64, "d_ff": 3072,
    "vocab_size": 32128, "feed_forward_proj": "relu", "relative_attention_num_buckets": 32, "n_positions": 512,
}  # fmt: skip
DEBERTA_V3 = {
    "model_type": "deberta-v2", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "vocab_size": 128100, "hidden_act": "gelu", "max_position_embeddings": 512,
    "relative_attention": True, "position_buckets": 256, "max_relative_positions": -1, "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False, "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}  # fmt: skip
BGE_QUERY = "query: `Represent this sentence for searching relevant passages: `"
QWEN_QUERY = "query: `Instruct: ...\\nQuery:`"
INSTRUCT_QUERY = "query: `Instruct: ...\\nQuery: `"
JINA_V2 = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "max_position_embeddings": 8192}
OTHER_ARCHITECTURES = ("attendant", "camembert", "electra", "ernie", "gte", "jina_bert_code", "llama", "mt5")
"""Supported architectures without a config.json in the list. `attendant-model train` creates `attendant` models."""
KNOWN_MODELS = (
    KnownModel(
        "sentence-transformers/all-MiniLM-L6-v2",
        MINILM,
        22.6, 256, "mean", "none", "Apache-2.0", "published weights", ("similarity", "retrieval"),
    ),
    KnownModel("BAAI/bge-base-en-v1.5", BERT_BASE, 109, 512, "cls", BGE_QUERY, "MIT"),
    KnownModel(
        "mixedbread-ai/mxbai-embed-large-v1", _bert("bert", 24, 1024, 30522), 334, 512, "cls", BGE_QUERY, "Apache-2.0"
    ),
    KnownModel(
        "intfloat/multilingual-e5-small",
        _bert("bert", 12, 384, 250037, num_attention_heads=12),
        118, 512, "mean", "`query: `, `passage: `", "MIT", languages=MULTILINGUAL,
    ),
    KnownModel(
        "intfloat/multilingual-e5-large",
        _bert("xlm-roberta", 24, 1024, 250002, **XLM_R | {"max_position_embeddings": 514}),
        559, 512, "mean", "`query: `, `passage: `", "MIT", languages=MULTILINGUAL,
    ),
    KnownModel(
        "BAAI/bge-m3", XLM_R_LARGE,
        567, 8192, "cls", "none", "MIT", tasks=("retrieval", "sparse", "multi-vector"), languages=MULTILINGUAL,
    ),
    KnownModel(
        "Snowflake/snowflake-arctic-embed-l-v2.0", XLM_R_LARGE,
        567, 8192, "cls", "query: `query: `", "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "sentence-transformers/all-mpnet-base-v2",
        _bert(
            "mpnet", 12, 768, 30527,
            max_position_embeddings=514, relative_attention_num_buckets=32, layer_norm_eps=1e-5,
        ),
        109, 384, "mean", "none", "Apache-2.0", tasks=("similarity", "retrieval"),
    ),
    KnownModel("sentence-transformers/gtr-t5-base", T5_BASE, 110, 512, "mean", "none", "Apache-2.0"),
    KnownModel(
        "sentence-transformers/sentence-t5-base", T5_BASE, 110, 256, "mean", "none", "Apache-2.0", tasks=("similarity",)
    ),
    KnownModel(
        "nomic-ai/nomic-embed-text-v1.5",
        {
            "model_type": "nomic_bert", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": 3072,
            "vocab_size": 30528,
            "n_positions": 8192, "max_trained_positions": 2048, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
            "rotary_scaling_factor": None, "activation_function": "swiglu", "type_vocab_size": 2, "prenorm": False,
            "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "scale_attn_weights": True,
        },
        137, 8192, "mean", "`search_query: `, `search_document: `, ...", "Apache-2.0",
    ),
    KnownModel(
        "Alibaba-NLP/gte-multilingual-base",
        _bert(
            "new", 12, 768, 250048, **GTE, type_vocab_size=1, rope_theta=20000,
            rope_scaling={"type": "ntk", "factor": 8.0},
        ),
        305, 8192, "cls", "none", "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "Alibaba-NLP/gte-large-en-v1.5",
        _bert(
            "new", 24, 1024, 30528, **GTE, type_vocab_size=2, rope_theta=160000,
            rope_scaling={"type": "ntk", "factor": 2.0},
        ),
        434, 8192, "cls", "none", "Apache-2.0",
    ),
    KnownModel(
        "Snowflake/snowflake-arctic-embed-m-v2.0",
        _bert("new", 12, 768, 250048, **GTE, type_vocab_size=1, rope_theta=160000),
        305, 8192, "cls", "query: `query: `", "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "jinaai/jina-embeddings-v2-base-en",
        _bert("bert", 12, 768, 30528, **JINA_V2),
        137, 8192, "mean", "none", "Apache-2.0",
    ),
    KnownModel(
        "jinaai/jina-embeddings-v2-base-code",
        _bert("bert", 12, 768, 61056, **JINA_V2),
        161, 8192, "mean", "none", "Apache-2.0",
    ),
    KnownModel(
        "jinaai/jina-embeddings-v3",
        _bert("xlm-roberta", 24, 1024, 250002, **XLM_R, position_embedding_type="rotary", rotary_emb_base=20000.0),
        558, 8192, "mean", "per task (`--task`)", "CC-BY-NC-4.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "Alibaba-NLP/gte-modernbert-base",
        MODERNBERT | {
            "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12, "intermediate_size": 1152,
        },
        149, 8192, "cls", "none", "Apache-2.0",
    ),
    KnownModel(
        "lightonai/modernbert-embed-large",
        MODERNBERT | {
            "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 2624,
        },
        395, 8192, "mean", "`search_query: `, `search_document: `", "Apache-2.0",
    ),
    KnownModel(
        "EuroBERT/EuroBERT-210m",
        {
            "model_type": "eurobert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "num_key_value_heads": 12, "intermediate_size": 3072, "vocab_size": 128256, "hidden_act": "silu",
            "rope_theta": 250000, "max_position_embeddings": 8192,
        },
        212, 8192, "mean", "none", "Apache-2.0", tasks=(), languages=MULTILINGUAL,
    ),
    KnownModel(
        "Qwen/Qwen3-Embedding-0.6B",
        QWEN3_SMALL,
        596, 32768, "last", QWEN_QUERY, "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "Qwen/Qwen3-Embedding-4B",
        QWEN3 | {
            "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728,
            "vocab_size": 151665,
        },
        4022, 32768, "last", QWEN_QUERY, "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "intfloat/e5-mistral-7b-instruct",
        {
            "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "hidden_act": "silu",
            "rope_theta": 10000.0, "max_position_embeddings": 32768, "sliding_window": 4096,
        },
        7111, 4096, "last", INSTRUCT_QUERY, "MIT",
    ),
    KnownModel(
        "Alibaba-NLP/gte-Qwen2-7B-instruct",
        {
            "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 151646, "hidden_act": "silu",
            "rope_theta": 1000000.0, "max_position_embeddings": 131072, "use_sliding_window": False,
            "is_causal": False,
        },
        7069, 32768, "last", INSTRUCT_QUERY, "Apache-2.0", languages=MULTILINGUAL,
    ),
    KnownModel(
        "google/embeddinggemma-300m",
        {
            "model_type": "gemma3_text", "hidden_size": 768, "num_hidden_layers": 24, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152, "vocab_size": 262144,
            "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 2048, "query_pre_attn_scalar": 256,
            "sliding_window": 512, "_sliding_window_pattern": 6, "use_bidirectional_attention": True,
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        },
        303, 2048, "mean", "`task: ... \\| query: `, `title: none \\| text: `", "Gemma", languages=MULTILINGUAL,
    ),
    KnownModel(
        "cross-encoder/ms-marco-MiniLM-L6-v2", MINILM, 22.6, 512, "cls", "none", "Apache-2.0", tasks=("rerank",),
    ),
    KnownModel(
        "mixedbread-ai/mxbai-rerank-base-v1", DEBERTA_V3, 184, 512, "cls", "none", "Apache-2.0", tasks=("rerank",)
    ),
    KnownModel(
        "MoritzLaurer/deberta-v3-base-zeroshot-v2.0", DEBERTA_V3, 184, 512, "cls", "none", "MIT",
        tasks=("zero-shot",),
    ),
    KnownModel(
        "BAAI/bge-reranker-v2-m3", XLM_R_LARGE,
        567, 8192, "cls", "none", "Apache-2.0", tasks=("rerank",), languages=MULTILINGUAL,
    ),
    KnownModel(
        "Qwen/Qwen3-Reranker-0.6B",
        QWEN3_SMALL,
        596, 32768, "last", "in the chat template", "Apache-2.0", tasks=("rerank",), languages=MULTILINGUAL,
    ),
    KnownModel("naver/splade-v3", BERT_BASE, 109, 512, "cls", "none", "CC-BY-NC-SA-4.0", tasks=("sparse",)),
    KnownModel(
        "opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill", DISTILBERT,
        66.4, 512, "cls", "none", "Apache-2.0", tasks=("sparse",),
    ),
    KnownModel("colbert-ir/colbertv2.0", BERT_BASE, 109, 512, "cls", "none", "MIT", tasks=("multi-vector",)),
    KnownModel(
        "answerdotai/answerai-colbert-small-v1",
        _bert("bert", 12, 384, 30522, num_attention_heads=12),
        33.2, 512, "cls", "none", "Apache-2.0", tasks=("multi-vector",),
    ),
    KnownModel(
        "dslim/bert-base-NER",
        _bert("bert", 12, 768, 28996),
        108, 512, "cls", "none", "MIT", tasks=("token classification",),
    ),
    KnownModel(
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english", DISTILBERT,
        66.4, 512, "cls", "none", "Apache-2.0", tasks=("classification",),
    ),
    KnownModel(
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        _bert("roberta", 12, 768, 50265, type_vocab_size=1, max_position_embeddings=514, pad_token_id=1),
        124, 512, "cls", "none", "CC-BY-4.0", tasks=("classification",),
    ),
)  # fmt: skip


def list_models() -> Iterator[str]:
    """Yield one line per architecture and well-known model."""
    width = max(len(model.hub_id) for model in KNOWN_MODELS)
    for model_type in dict.fromkeys(model.model_type for model in KNOWN_MODELS):
        yield model_type
        for model in KNOWN_MODELS:
            if model.model_type == model_type:
                layers, size = model.shape
                yield (
                    f"  {model.hub_id:{width}}  {layers} layers, size {size}, {model.max_input_tokens:,} tokens, "
                    f"{model.pooling} pooling, {model.license}"
                )
    yield f"others: {', '.join(OTHER_ARCHITECTURES)}"
