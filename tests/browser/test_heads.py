"""Thumbnails of all layers and heads: pixels, scale, enlargement, and head names."""

import base64
from typing import Any, Literal

import httpx
import numpy as np
import pytest

from tests.browser.conftest import TWO_SENTENCES, NewDriver
from tests.browser.page_driver import PageDriver
from tests.browser.test_map import first_result

pytestmark = pytest.mark.slow

ALPHAS = """() => [...document.querySelectorAll(".multiples canvas")].map((canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return Array.from(pixels).filter((_, place) => place % 4 === 3);
})"""
OPAQUE = """(color) => {
    const canvas = document.querySelectorAll(".multiples canvas")[2];
    if (!canvas) return false;  // the grid is being replaced
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const opaque = pixels.findIndex((value, place) => place % 4 === 3 && value === 255);
    return color.every((value, channel) => pixels[opaque - 3 + channel] === value);
}"""
THRESHOLD = 0.5
NAMES = {
    "previous": "previous token",
    "next": "next token",
    "first": "first token",
    "separator": "separator",
    "same": "same token",
}


def test_thumbnail_sets_the_controls(driver: PageDriver) -> None:
    """The selected kind changes to one that has maps per head, and the slider moves to the layer."""
    assert driver.page.locator(".multiples button").count() == 6 * 12
    driver.page.get_by_role("button", name="layer 3, head 5").click()
    driver.settle()
    values = {name: driver.page.locator(f"#{name}").input_value() for name in ("kind", "combine", "layer", "head")}
    assert values == {"kind": "probs", "combine": "none", "layer": "3", "head": "5"}
    body = driver.sent_bodies()[-1]
    assert (body["kind"], body["layers"], body["heads"]) == ("probs", [3], [5])
    pressed = driver.page.locator(".multiples [aria-pressed=true]")
    assert pressed.count() == 1
    assert (pressed.get_attribute("aria-label") or "").startswith("layer 3, head 5")


def test_thumbnail_has_the_pixels_of_its_map(driver: PageDriver, rest: httpx.Client) -> None:
    """There is one pixel per cell. Its opacity is the square root of the value relative to the maximum."""
    body = driver.sent_bodies()[0] | {"kind": "probs", "layers": "all", "layer_reduce": "none", "decimals": None}
    maps = first_result(rest, body | {"heads": "all", "head_reduce": "none"})["maps"]
    largest = max(value for attention_map in maps for row in attention_map["matrix"] for value in row)
    for scale in ("shared", "head"):
        driver.page.select_option("#scale-of-heads", scale)
        for attention_map, actual in zip(maps, driver.page.evaluate(ALPHAS), strict=True):
            own = max(value for row in attention_map["matrix"] for value in row)
            full = largest if scale == "shared" else own
            expected = [255 * (value / full) ** 0.5 for row in attention_map["matrix"] for value in row]
            assert actual == pytest.approx(expected, abs=1.01), scale


def test_images_follow_the_color_scheme(new_driver: NewDriver) -> None:
    """Colors must match the style sheet, even after the color scheme changes."""
    driver = new_driver(color_scheme="light").open().explore()
    light, dark = [52, 88, 200], [110, 146, 255]
    schemes: list[tuple[Literal["light", "dark"], list[int]]] = [("light", light), ("dark", dark), ("light", light)]
    for scheme, color in schemes:
        driver.page.emulate_media(color_scheme=scheme)
        driver.page.wait_for_function(OPAQUE, arg=color)


def test_thumbnail_is_enlarged_with_labels(driver: PageDriver) -> None:
    """It is enlarged on hover and on focus, and stays inside the window."""
    enlarged = driver.page.locator(".enlarged")
    assert not enlarged.is_visible()
    for layer, head in ((1, 0), (6, 11)):
        thumbnail = driver.page.get_by_role("button", name=f"layer {layer}, head {head}").first
        thumbnail.hover()
        texts = enlarged.locator("text").all_text_contents()
        assert texts[0].startswith(f"layer {layer}, head {head}")
        assert texts.count("cashed") == 2
        box, size = enlarged.bounding_box(), driver.page.viewport_size
        assert box is not None
        assert size is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
    driver.page.mouse.move(0, 0)
    assert not enlarged.is_visible()
    driver.page.get_by_role("button", name="layer 2, head 2").first.focus()
    assert enlarged.is_visible()


def roles(results: list[dict[str, Any]]) -> dict[tuple[int, int], tuple[str, float]]:
    """Return each head's role by the rule in docs/maps.md, computed independently of the page."""
    sums: dict[tuple[int, int, str], list[float]] = {}
    for result in results:
        tokens = [(unit["text"].lower(), unit["special"]) for unit in result["units"]]
        for attention_map in result["maps"]:
            weights = np.array(attention_map["matrix"])
            for i, (text, special) in enumerate(tokens):
                if special:
                    continue
                others = [j for j, token in enumerate(tokens) if j != i and token == (text, False)]
                rows = {
                    "previous": None if tokens[i - 1][1] else weights[i, i - 1],
                    "next": None if tokens[i + 1][1] else weights[i, i + 1],
                    "first": weights[i, 0],
                    "separator": weights[i, -1],
                    "same": weights[i, others].sum() if others else None,
                }
                for role, value in rows.items():
                    if value is not None:
                        key = (attention_map["layer"], attention_map["head"], role)
                        sums.setdefault(key, []).append(float(value))
    named: dict[tuple[int, int], tuple[str, float]] = {}
    for (layer, head, role), values in sums.items():
        mean = sum(values) / len(values)
        enough = len(values) >= (2 if role == "same" else 5)
        if enough and mean >= THRESHOLD and mean > named.get((layer, head), ("", 0.0))[1]:
            named[layer, head] = (role, mean)
    return named


def test_names_of_heads_follow_the_rule(driver: PageDriver, rest: httpx.Client) -> None:
    """Each name is part of its head's accessible name, and no other head has one."""
    body = {"inputs": list(TWO_SENTENCES), "kind": "probs", "unit": "token", "special_tokens": "keep"}
    expected = roles(rest.post("/v1/attend", json=body).json()["results"])
    assert {role for role, _ in expected.values()} >= {"previous", "next", "first"}
    for layer in range(1, 7):
        for head in range(12):
            name = f"layer {layer}, head {head}"
            if role := expected.get((layer, head)):
                name += f": {NAMES[role[0]]} "
            labels = driver.page.locator(".multiples button").nth((layer - 1) * 12 + head).get_attribute("aria-label")
            assert (labels or "").startswith(name)
            assert (":" in (labels or "")) is ((layer, head) in expected)


def test_legend_counts_the_heads_per_name(driver: PageDriver) -> None:
    labels = driver.page.locator(".multiples button").evaluate_all(
        "(all) => all.map((n) => n.getAttribute('aria-label'))"
    )
    previous = sum(": previous token " in label for label in labels)
    legend = driver.page.locator("#heads .legend").inner_text()
    start = "A symbol marks a head whose mean attention weight on such tokens is at least 0.500 in these sentences. "
    assert legend.startswith(f"{start}← previous token ({previous} head{'s' if previous > 1 else ''}), → next token (")
    assert "The selected kind has no maps per head." in driver.page.locator("#heads .body").inner_text()
    driver.choose(kind="probs")
    assert "The selected kind has no maps per head." not in driver.page.locator("#heads .body").inner_text()


def synthetic(tokens: list[str], weights: list[list[float]]) -> dict[str, Any]:
    """Return a response in which one head attends between tokens with these weights."""
    units = [{"text": token, "special": token.startswith("[")} for token in tokens]
    data = base64.b64encode(np.array(weights, dtype=np.float16).tobytes()).decode()
    matrix = {"shape": [len(tokens)] * 2, "dtype": "float16", "data": data}
    return {"results": [{"units": units, "maps": [{"layer": 1, "head": 0, "matrix": matrix}]}]}


TOKENS = ["[CLS]", "a", "b", "a", "c", "d", "e", "[SEP]"]
SHIFTS = {
    "previous": np.eye(8, k=-1),
    "next": np.eye(8, k=1),
    "first": np.eye(8)[[0] * 8],
    "separator": np.eye(8)[[7] * 8],
}


@pytest.mark.parametrize("role", SHIFTS)
@pytest.mark.parametrize(("weight", "is_named"), [(0.9, True), (0.52, True), (0.48, False)])
def test_head_with_one_target_has_its_role(shared: PageDriver, role: str, weight: float, is_named: bool) -> None:
    """The remaining weight is on the token itself."""
    weights = (weight * SHIFTS[role] + (1 - weight) * np.eye(8)).tolist()
    script = "async (response) => [...(await import('/page/heads.js')).rolesOf(response)]"
    named = shared.page.evaluate(script, synthetic(TOKENS, weights))
    assert [(key, head["role"]) for key, head in named] == ([("1.0", role)] if is_named else [])


def test_head_that_attends_to_equal_words_is_named(shared: PageDriver) -> None:
    """Only rows with an equal word count; here, `a` occurs twice."""
    weights = np.eye(8)
    weights[[1, 3]] = weights[[3, 1]]
    script = "async (response) => [...(await import('/page/heads.js')).rolesOf(response)]"
    ((key, head),) = shared.page.evaluate(script, synthetic(TOKENS, weights.tolist()))
    assert (key, head["role"], head["value"]) == ("1.0", "same", 1)
