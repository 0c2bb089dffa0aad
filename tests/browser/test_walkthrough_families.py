"""The walkthrough of the page with other architectures: windows, causal attention, grouped queries, relative biases."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser
from safetensors.torch import load_file, save_file

from model.encoder.layers import sinusoids
from model.export.export import export
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_walkthrough import DRAWN, STEPS, array, go, numbers, said
from tests.conftest import RunningServer, serving
from tests.retrievers import MASKED_LMS, export_retriever

pytestmark = pytest.mark.slow

CASES = {"modernbert": "modernbert", "qwen3, windows": "qwen3", "mpnet": "mpnet"}
MASKED = "masked"
TEXT = "The miller counts his boats."
"""At most 32 tokens, so that the page lists all of them, and longer than the windows."""
SECOND = "Ein Hund zählt boats."


@pytest.fixture(scope="module")
def models(publish: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of a tiny model of each case, and of one with a masked-LM head."""
    root = tmp_path_factory.mktemp("models")
    for kind, name in CASES.items():
        source = shutil.copytree(publish(kind), root / f"source-{name}")
        if name == "mpnet":
            set_sinusoids(source / "model.safetensors")
        export(str(source), root / name, revision=None, name=name, progress=lambda step: None)
    paths = {name: root / name for name in CASES.values()} | {MASKED: export_retriever(MASKED_LMS[0])}
    with serving(models=",".join(f"{name}={path}" for name, path in paths.items())) as server:
        yield server


@pytest.mark.parametrize("name", CASES.values())
def test_steps_of_other_architectures(browser: Browser, models: RunningServer, name: str) -> None:
    with httpx.Client(base_url=models.rest, timeout=60) as rest:
        info = next(model for model in rest.get("/v1/models").json()["data"] if model["name"] == name)
        tokens = rest.post("/v1/tokenize", json={"inputs": [TEXT], "model": name}).json()["results"][0]["tokens"]
        row = next(place for place, token in enumerate(tokens) if token["start"] <= TEXT.index("boats") < token["end"])
        assert len(tokens) <= 32
        steps = ["queries", "keys", "scores", "weights"]
        body = {"inputs": [TEXT], "outputs": steps, "rows": [row], "model": name}
        (result,) = rest.post("/v1/attend", json=body | {"encoding_format": "base64"}).json()["results"]
        body = {"inputs": [TEXT], "outputs": ["position"], "model": name, "encoding_format": "base64"}
        (positions,) = rest.post("/v1/attend", json=body).json()["results"]
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    driver = PageDriver(context.new_page(), models.rest)
    for outputs, place in zip(result["layer_outputs"][:2], positions["layer_outputs"][:2], strict=True):
        arrays = {key: array(outputs[key]) for key in steps} | {"position": array(place["position"])}
        check_layer(driver, info, row, outputs["layer"], arrays)
    assert driver.errors == []
    context.close()


def set_sinusoids(path: Path) -> None:
    """Replace the table of positions by scaled sinusoids."""
    weights = load_file(path)
    (name,) = (key for key in weights if key.endswith("position_embeddings.weight"))
    weights[name] = (0.2 * sinusoids(*weights[name].shape)).contiguous()
    save_file(weights, path, metadata={"format": "pt"})


def check_layer(driver: PageDriver, info: dict[str, Any], row: int, layer: int, step: dict[str, Any]) -> None:
    head = info["num_attention_heads"] - 1
    state = {"text": TEXT, "second": SECOND, "start": TEXT.index("boats"), "layer": layer, "head": head}
    driver.page.goto("about:blank")
    named = {f"walk{key}": str(value) for key, value in state.items()}
    driver.page.goto(f"{driver.base}/#{urlencode({'v': '1', 'tab': 'attention', 'model': info['name'], **named})}")
    driver.page.wait_for_function(DRAWN)
    titles = set()
    for number in range(1, STEPS + 1):
        go(driver, number)
        titles.add(driver.page.locator("#walk-title").inner_text())
        assert "NaN" not in driver.page.locator("#walk-step").inner_text(), number
    assert len(titles) == STEPS

    go(driver, 2)
    driver.page.locator(".drawing .figure").wait_for()
    if "table" in info["layer_structure"]["positions"]:
        assert driver.page.locator(".drawing .chart .curve").count() == 3
        assert "A formula made this table" in driver.page.locator(".drawing .figure").inner_text()
    else:
        hands = driver.page.locator(".drawing .figure tbody tr td:nth-child(2)").all_inner_texts()
        turned = np.rad2deg(step["position"][:, 0]) % 360
        assert (
            np.abs((np.array([float(hand.strip("°\n ")) for hand in hands]) - turned + 180) % 360 - 180).max() <= 0.51
        )

    scores, weights = step["scores"][head, 0], step["weights"][head, 0]
    go(driver, 5)
    dots = step["keys"][head] @ step["queries"][head, 0]
    assert [row[0] for row in numbers(driver)] == [format_number(value) for value in dots]
    go(driver, 6)
    assert [row[-1] for row in numbers(driver)] == [format_number(value) for value in weights]
    if "relative" in info["layer_structure"]["positions"]:
        bias = scores - info["layer_structure"]["attention_scale"] * dots
        shown = [float(row[1].replace("\u2212", "-")) for row in numbers(driver)]
        np.testing.assert_allclose(shown, bias, atol=6e-4 * max(1, np.abs(bias).max()))
    go(driver, 7)
    places = np.arange(len(weights))
    visible = driver.page.locator(".drawing tbody tr td:nth-child(3)").all_inner_texts()
    assert visible == ["yes" if weight > 0 else "no" for weight in weights]
    if info["attention"] == "causal":
        assert not weights[places > row].any()
        assert f"hides the {len(weights) - 1 - row} tokens after" in said(driver)
        assert driver.page.locator("#switch").count() == 0
    elif not weights.all():
        assert "outside of the window of this layer" in said(driver)
    go(driver, 8)
    masked = np.where(weights > 0, scores, -np.inf)
    expected = np.exp(masked - masked.max()) / np.exp(masked - masked.max()).sum()
    assert [row[-1] for row in numbers(driver)][:-1] == [format_number(value) for value in expected]


def readable(token: str) -> str:
    """Return a token without the sign for a space before it."""
    return token[1:] if len(token) > 1 and token[0] in "\u0120\u2581" else token


def test_last_step_reads_words_from_the_vector_of_each_layer(browser: Browser, models: RunningServer) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    driver = PageDriver(context.new_page(), models.rest)
    state = {"text": TEXT, "start": TEXT.index("boats"), "step": STEPS - 1, "layer": 1}
    named = {f"walk{key}": str(value) for key, value in state.items()}
    driver.page.goto(f"{driver.base}/#{urlencode({'v': '1', 'tab': 'attention', 'model': MASKED, **named})}")
    words = driver.page.get_by_role("region", name="Words by layer").locator("tbody tr")
    words.first.wait_for()
    with httpx.Client(base_url=models.rest, timeout=60) as rest:
        tokens = rest.post("/v1/tokenize", json={"inputs": [TEXT], "model": MASKED}).json()["results"][0]["tokens"]
        row = next(place for place, token in enumerate(tokens) if token["start"] == TEXT.index("boats"))
        body = {"inputs": [TEXT], "position": row, "layers": "all", "top_k": 5, "model": MASKED}
        (position,) = rest.post("/v1/fill-mask", json=body).json()["results"][0]["positions"]
    expected = [
        ", ".join(f"{readable(word['token'])} {format_number(word['probability'])}" for word in layer["predictions"])
        for layer in position["layers"]
    ]
    assert words.locator("td").all_inner_texts() == expected
    assert words.locator("th").all_inner_texts() == [
        "input of layer 1",
        *(f"layer {n}" for n in range(1, len(expected))),
    ]
    assert driver.errors == []
    context.close()


def test_each_piece_of_a_character_can_be_followed(browser: Browser, models: RunningServer) -> None:
    """The tokens of an emoji share its characters, so a link names all but the first by their number."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    driver = PageDriver(context.new_page(), models.rest)
    named = {"walktext": "🚣 boats", "walksecond": "", "walkstep": "1"}
    driver.page.goto(f"{driver.base}/#{urlencode({'v': '1', 'tab': 'attention', 'model': MASKED, **named})}")
    units = driver.page.locator("#attention .units button")
    units.nth(2).click()
    driver.page.locator("#attention .units button:nth-child(3)[aria-pressed=true]").wait_for()
    driver.page.wait_for_url("**walkstart=-3**")  # after the two special tokens
    link = driver.page.url
    driver.page.goto("about:blank")
    driver.page.goto(link)
    driver.page.locator("#attention .units button:nth-child(3)[aria-pressed=true]").wait_for()
    assert driver.errors == []
    context.close()
