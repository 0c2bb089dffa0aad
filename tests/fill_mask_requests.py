"""Requests to fill-mask that combine all fields, and checks of the responses."""

from typing import Any

from hypothesis import strategies as st

from tests.request_strategies import Body, ModelFacts, body, draw_layers, inputs, optional

TARGETS = ("bank", "river", "the", "a", "Bank", "money", "", "river bank", "\U0001f469\u200d")


def fill_mask_bodies(facts: ModelFacts) -> st.SearchStrategy[Body]:
    """Draw fill-mask requests. Some inputs lack a mask token, and some targets are not one token."""
    return body(
        inputs=inputs(facts, spans=False).flatmap(lambda items: _with_masks(items, facts.mask_token or "[MASK]")),
        position=optional(st.integers(-1, 20)),
        layers=optional(draw_layers(facts, 0)),
        top_k=optional(st.integers(0, 101)),
        targets=optional(st.lists(st.sampled_from(TARGETS), max_size=3)),
        truncation=st.sampled_from([..., "error", "right", "left", "auto"]),
    )


@st.composite
def _with_masks(draw: st.DrawFn, items: Any, mask: str) -> Any:
    if isinstance(items, str):
        return draw(_masked(items, mask))
    masked: list[Any] = []
    for item in items:
        text = item if isinstance(item, str) else item.get("text")
        changed = None if text is None else draw(_masked(text, mask))
        masked.append(changed if isinstance(item, str) else item | ({} if changed is None else {"text": changed}))
    return masked


def _masked(text: str, mask: str) -> st.SearchStrategy[str]:
    """Put a mask at the start, instead of a space, at the end, or nowhere."""
    return st.sampled_from([f"{mask} {text}", text.replace(" ", f" {mask} ", 1), f"{text}{mask}", text])


def check_fill_mask(request: Body, response: Any, facts: ModelFacts) -> None:
    items = [request["inputs"]] if isinstance(request["inputs"], str) else request["inputs"]
    layers, targets, count = request.get("layers", [-1]), request.get("targets"), facts.num_hidden_layers + 1
    expected_layers = list(range(count)) if layers == "all" else [layer % count for layer in layers]
    size = request.get("top_k", 5 if targets is None else len(targets))
    for item, result in zip(items, response["results"], strict=True):
        texts = (item, "") if isinstance(item, str) else (item.get("text", ""), item.get("pair", ""))
        places = [position["position"] for position in result["positions"]]
        assert places == sorted(set(places))
        assert max(places) < result["token_count"]
        if "position" in request:
            assert places == [request["position"]]
        for position in result["positions"]:
            if "position" not in request and texts[0]:
                assert texts[position["segment"]][position["start"] : position["end"]] == facts.mask_token
            assert [layer["layer"] for layer in position["layers"]] == expected_layers
            for layer in position["layers"]:
                predictions = layer["predictions"]
                probabilities = [word["probability"] for word in predictions]
                assert len(predictions) == min(size, facts.vocab_size if targets is None else len(targets))
                assert len({word["id"] for word in predictions}) == len(predictions)
                assert probabilities == sorted(probabilities, reverse=True)
                assert sum(probabilities) < 1 + 1e-5


def compare_fill_mask(body: Any, message: Any, tolerance: float) -> None:
    for actual, expected in zip(message.results, body["results"], strict=True):
        assert (actual.token_count, actual.truncated) == (expected["token_count"], expected["truncated"])
        for one, other in zip(actual.positions, expected["positions"], strict=True):
            places = ("position", "start", "end", "segment")
            assert [getattr(one, name) for name in places] == [other[name] for name in places]
            for words, others in zip(one.layers, other["layers"], strict=True):
                assert words.layer == others["layer"]
                pairs = zip(words.predictions, others["predictions"], strict=True)  # equal ones may swap places
                assert all(abs(word.probability - item["probability"]) <= tolerance for word, item in pairs)
