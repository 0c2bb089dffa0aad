"""Malformed and invalid request bodies, with the expected errors."""

import json
from typing import Any

SECRET = "Sesame-9"


def deep(levels: int) -> bytes:
    return b'{"inputs": ' + b"[" * levels + b'"' + SECRET.encode() + b'"' + b"]" * levels + b"}"


def body(**fields: Any) -> bytes:
    return json.dumps({"inputs": SECRET, **fields}).encode()


def raw(field: str) -> bytes:
    return b'{"inputs": "' + SECRET.encode() + b'", ' + field.encode() + b"}"


MALFORMED = {
    "empty": b"",
    "truncated": b'{"inputs": "Sesame-9',
    "trailing garbage": b'{"inputs": "Sesame-9"} Sesame-9',
    "not JSON": b"Sesame-9",
    "NaN": raw('"dimensions": NaN'),
    "NaN in an unknown field": raw('"x": NaN'),
    "Infinity": raw('"dimensions": -Infinity'),
    "1e999": raw('"dimensions": 1e999'),
    "lone surrogate": b'{"inputs": "Sesame-9 \\ud800"}',
    "not UTF-8": b'{"inputs": "Sesame-9 \xff"}',
    "UTF-16": '{"inputs": "Sesame-9"}'.encode("utf-16"),
    "BOM": b'\xef\xbb\xbf{"inputs": "Sesame-9"}',
    "5,000 nested arrays": deep(5_000),
    "single quotes": b"{'inputs': 'Sesame-9'}",
}
INVALID = {
    "missing inputs": (b"{}", "INVALID_ARGUMENT", "inputs: missing. Send it."),
    "null": (b"null", "INVALID_ARGUMENT", "Body: wrong type"),
    "array": (b"[]", "INVALID_ARGUMENT", "Body: wrong type"),
    "empty list": (body(inputs=[]), "EMPTY_INPUT", "inputs: empty. Send at least one item."),
    "empty text": (body(inputs=""), "EMPTY_INPUT", "inputs[0]: empty or blank. Send text."),
    "blank text": (body(inputs=["a", " \t\n"]), "EMPTY_INPUT", "inputs[1]: empty or blank. Send text."),
    "number as inputs": (body(inputs=5), "INVALID_ARGUMENT", "inputs: wrong type (number). Send a string or an array."),
    "number as input": (
        body(inputs=["a", 5]),
        "INVALID_ARGUMENT",
        "inputs[1]: wrong type (number). Send a string or an object.",
    ),
    "null as input": (
        body(inputs=[None]),
        "INVALID_ARGUMENT",
        "inputs[0]: wrong type (null). Send a string or an object.",
    ),
    "number as text": (
        body(inputs=[{"text": 5}]),
        "INVALID_ARGUMENT",
        "inputs[0].text: wrong type (number). Send a string.",
    ),
    "neither text nor ids": (body(inputs=[{}]), "INVALID_ARGUMENT", "inputs[0]: text and token_ids are both missing."),
    "text and ids": (
        body(inputs=[{"text": "a", "token_ids": [5]}]),
        "INVALID_ARGUMENT",
        "inputs[0]: text and token_ids are both set. Send one of them.",
    ),
    "pair and ids": (
        body(inputs=[{"pair": "a", "token_ids": [5]}]),
        "INVALID_ARGUMENT",
        "inputs[0]: pair and token_ids are both",
    ),
    "strings as token_ids": (
        body(inputs=[{"token_ids": ["5"]}]),
        "INVALID_ARGUMENT",
        "inputs[0].token_ids[0]: wrong type",
    ),
    "booleans as token_ids": (
        body(inputs=[{"token_ids": [True]}]),
        "INVALID_ARGUMENT",
        "inputs[0].token_ids[0]: wrong type",
    ),
    "100,000 nested arrays": (
        deep(100_000),
        "TOO_MANY_ITEMS",
        "Too many arrays and objects in the request body (100001, limit",
    ),
    "900 nested arrays": (deep(900), "INVALID_ARGUMENT", "inputs[0]: wrong type (array). Send a string or an object."),
    "span of three": (
        body(inputs=[{"text": "abc", "spans": [[0, 1, 2]]}]),
        "INVALID_ARGUMENT",
        "inputs[0].spans[0]: wrong number of items (3, limit 2). Send",
    ),
    "257 inputs": (body(inputs=["a"] * 257), "TOO_MANY_INPUTS", "inputs: too many items (257, limit 256). Split"),
    "40,000 inputs": (
        body(inputs=[SECRET] * 40_000),
        "TOO_MANY_INPUTS",
        "inputs: too many items (40000, limit 256).",
    ),
    "unknown field": (body(x=SECRET), "UNKNOWN_FIELD", "x: unknown field. Remove it."),
    "unknown nested field": (
        body(inputs=[{"text": "a", "y": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].y: unknown field. Remove it",
    ),
    "unusual field name": (body(**{SECRET + "!": 1}), "UNKNOWN_FIELD", "(another name): unknown field. Remove it."),
    "empty field name": (body(**{"": 1}), "UNKNOWN_FIELD", "(another name): unknown field. Remove it."),
    "empty nested field name": (
        body(inputs=[{"text": "a", "": 1}]),
        "UNKNOWN_FIELD",
        "inputs[0].(another name): unknown field. Remove it.",
    ),
    "name like a field that is set": (body(input="a"), "UNKNOWN_FIELD", "input: unknown field. Remove it."),
    "integer of 65 bits": (
        body(dimensions=2**64),
        "INVALID_ARGUMENT",
        "dimensions: out of range. Send a smaller integer.",
    ),
    "integers of 65 bits": (
        body(inputs=[{"token_ids": [2**64]}]),
        "INVALID_ARGUMENT",
        "inputs[0].token_ids[0]: out of range. Send a smaller integer.",
    ),
    "float of more than 64 bits": (body(dimensions=1e300), "INVALID_ARGUMENT", "dimensions: out of range."),
    "number as model": (body(model=5), "INVALID_ARGUMENT", "model: wrong type (number). Send a string."),
    "string as outputs": (body(outputs=SECRET), "INVALID_ARGUMENT", "outputs: wrong type (string). Send an array."),
    "unknown output": (
        body(outputs=[SECRET]),
        "INVALID_ARGUMENT",
        'outputs[0]: unknown value. Use "pooled", "tokens",',
    ),
    "number as layers": (body(layers=5), "INVALID_ARGUMENT", 'layers: wrong type (number). Send "all" or an array.'),
    "string as layer": (body(layers=["5"]), "INVALID_ARGUMENT", "layers[0]: wrong type"),
    "boolean as layer": (body(layers=[True]), "INVALID_ARGUMENT", "layers[0]: wrong type"),
    "unknown layer_reduce": (
        body(layer_reduce="sum"),
        "INVALID_ARGUMENT",
        'layer_reduce: unknown value. Use "concat", "mean"',
    ),
    "unknown pooling": (
        body(pooling="last"),
        "INVALID_ARGUMENT",
        'pooling: unknown value. Use "mean", "cls" or "max".',
    ),
    "string as normalize": (
        body(normalize="true"),
        "INVALID_ARGUMENT",
        "normalize: wrong type (string). Send true or false.",
    ),
    "float as dimensions": (body(dimensions=8.5), "INVALID_ARGUMENT", "dimensions: wrong type"),
    "string as dimensions": (body(dimensions="8"), "INVALID_ARGUMENT", "dimensions: wrong type"),
    "large dimensions": (
        body(dimensions=385),
        "INVALID_ARGUMENT",
        "dimensions: out of range (385, limit 384).",
    ),
    "wrong truncation": (
        body(truncation=True),
        "INVALID_ARGUMENT",
        'truncation: unknown value. Use "error", "right"',
    ),
    "unknown encoding_format": (
        body(encoding_format="hex"),
        "INVALID_ARGUMENT",
        'encoding_format: unknown value. Use "float" or "base64".',
    ),
    "unknown dtype": (body(dtype="float64"), "INVALID_ARGUMENT", 'dtype: unknown value. Use "float32", "float16",'),
    "too many tokens": (
        body(inputs=["word " * 300]),
        "INPUT_TOO_LONG",
        'inputs[0]: too long (302 tokens, limit 256). Shorten it or set truncation to "right".',
    ),
}
