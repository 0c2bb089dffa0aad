"""Attention maps: values, controls, thumbnails of heads, the layer slider, and the keyboard."""

import base64
from typing import Any, Literal

import httpx
import numpy as np
import pytest

from tests.browser.conftest import TWO_SENTENCES, NewDriver
from tests.browser.page_driver import PageDriver, format_number
from tests.browser.test_opening import compared

pytestmark = pytest.mark.slow

Fields = dict[str, Any]

# Layer, control values, and expected request fields.
VIEWS: list[tuple[int, dict[str, str], Fields]] = [
    (6, {"special": "renormalize"}, {"layer_reduce": "rollout", "special_tokens": "renormalize"}),
    (4, {"combine": "none", "special": "drop"}, {"kind": "projection", "layers": [4], "layer_reduce": "none"}),
    (3, {"kind": "probs", "combine": "none", "head": "5"}, {"heads": [5], "head_reduce": "none"}),
    (2, {"kind": "scores", "combine": "none", "head": "max"}, {"kind": "scores", "head_reduce": "max"}),
    (6, {"kind": "norm", "combine": "mean", "head": "sum"}, {"layers": "all", "layer_reduce": "mean"}),
    (1, {"kind": "norm", "combine": "none", "head": "0", "special": "keep"}, {"special_tokens": "keep"}),
    (6, {"kind": "block_norm", "combine": "none", "special": "drop"}, {"kind": "block_norm", "layers": [-1]}),
]


def first_result(rest: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return the first sentence's result."""
    result: dict[str, Any] = rest.post("/v1/attend", json=body).raise_for_status().json()["results"][0]
    return result


def test_cells_equal_the_response(driver: PageDriver, rest: httpx.Client) -> None:
    """Checks the request, all cells with excluded mass and bias, the headers, and a cell's accessible name."""
    for view in VIEWS:
        check_view(driver, rest, *view)


def check_view(driver: PageDriver, rest: httpx.Client, layer: int, choices: dict[str, str], expected: Fields) -> None:
    driver.slide(layer).choose(**choices)
    body = driver.sent_bodies()[-1]
    assert {field: body[field] for field in expected} == expected
    result = first_result(rest, body)
    (attention_map,) = result["maps"]
    bias, excluded = attention_map["bias_share"], attention_map["excluded_mass"]
    extras = [bias] if bias else []
    extras += [excluded] if excluded and not result["units"][0]["special"] else []
    rows = [row + [extra[index] for extra in extras] for index, row in enumerate(attention_map["matrix"])]
    assert driver.cells() == [[format_number(value) for value in row] for row in rows]
    heads = driver.page.locator("#map thead th").all_inner_texts()
    units = [unit["text"] for unit in result["units"]]
    assert heads[: len(units)] == units == driver.page.locator("#map tbody th").all_inner_texts()
    cell, value = driver.page.locator('#map [data-place="1:3"]'), format_number(rows[1][3])
    sentences = {
        "probs": f"{units[1]} attends to {units[3]} with weight {value}",
        "scores": f"{units[1]} attends to {units[3]} with score {value}",
    }
    contribution = f"{units[3]} contributes {value} to {units[1]}"
    assert cell.get_attribute("aria-label") == sentences.get(body["kind"], contribution)


def test_token_unit_keeps_the_selected_word(driver: PageDriver) -> None:
    """`cashed` has two tokens."""
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.settle()
    assert driver.sent_bodies()[-1]["unit"] == "token"
    texts = driver.page.locator(".strip").first.locator(".text").all_inner_texts()
    assert texts == ["He", "cash", "ed", "a", "check", "at", "the", "bank", "."]
    assert driver.page.locator(".strip [aria-pressed=true] .text").first.inner_text() == "bank"


def test_unsupported_choices_are_disabled_with_a_reason(driver: PageDriver) -> None:
    """The page must not send a request that the server would reject."""
    assert driver.page.locator("#head").is_disabled()
    assert "kind projection always covers all heads" in driver.page.locator("#head-reason").inner_text()
    driver.choose(kind="scores")
    assert driver.page.locator("#combine").input_value() == "mean"
    assert driver.page.locator("#combine option[value=rollout]").is_disabled()
    assert driver.page.locator("#special option[value=renormalize]").is_disabled()
    driver.choose(kind="norm")
    assert driver.page.locator("#head").input_value() == "sum"
    assert driver.errors == []


def test_choice_returns_when_the_kind_supports_it_again(driver: PageDriver) -> None:
    """Scores support neither rollout nor renormalization."""
    driver.choose(special="renormalize").choose(kind="scores").choose(kind="norm").choose(kind="projection")
    assert driver.page.locator("#combine").input_value() == "rollout"
    assert driver.page.locator("#special").input_value() == "renormalize"
    assert (driver.sent_bodies()[-1]["layer_reduce"], driver.sent_bodies()[-1]["special_tokens"]) == (
        "rollout",
        "renormalize",
    )
    driver.choose(kind="scores", combine="none").choose(kind="projection")
    assert driver.page.locator("#combine").input_value() == "none"


def test_hovered_word_shows_its_contributions(driver: PageDriver) -> None:
    """When the pointer leaves, the selected word is shown again."""
    before = driver.line(1)
    driver.page.locator(".strip").first.get_by_role("button", name="cashed").hover()
    assert driver.line(1).startswith("Contributions to cashed: ")
    driver.page.locator("h1:visible").hover()
    assert driver.line(1) == before


def test_selecting_a_word_opens_the_map_of_its_sentence(driver: PageDriver) -> None:
    driver.page.locator(".strip").nth(1).get_by_role("button", name="river").click()
    driver.settle()
    assert driver.page.locator("#open").input_value() == "1"
    assert driver.page.locator("#map tr.chosen th").inner_text() == "river"
    assert driver.page.locator("#map tbody th").all_inner_texts()[0] == "They"


def test_contribution_of_a_word_to_itself_can_be_included(driver: PageDriver, rest: httpx.Client) -> None:
    """The words then show the map's values without a new request."""
    count = len(driver.sent_bodies())
    driver.page.get_by_label("Include the contribution of a word to itself").check()
    result = first_result(rest, driver.sent_bodies()[0])
    bank = [unit["text"] for unit in result["units"]].index("bank")
    values = driver.page.locator(".strip").first.locator(".value").all_inner_texts()
    assert values == [format_number(value) for value in result["maps"][0]["matrix"][bank]]
    assert "itself " in driver.line(1)
    assert driver.page.locator("#scale").inner_text() == "The values are those of the map below."
    assert len(driver.sent_bodies()) == count


def test_long_sentence_is_an_image_with_a_table_of_one_row(driver: PageDriver, rest: httpx.Client) -> None:
    """The table shows the selected word's row. Thumbnails are drawn on request."""
    text = " ".join(f"Day {number} went by on the bank of the river." for number in range(8))
    driver.type(1, text)
    result = first_result(rest, driver.sent_bodies()[-1])
    assert len(result["units"]) > 64
    size = driver.page.evaluate(
        "(() => { const c = document.querySelector('#map .heatmap'); return [c.width, c.height]; })()"
    )
    assert size == [len(result["units"])] * 2
    chosen = [unit["text"] for unit in result["units"]].index("bank")
    (attention_map,) = result["maps"]
    expected = [*attention_map["matrix"][chosen], attention_map["excluded_mass"][chosen]]
    assert driver.cells("#map .matrix.row tbody tr") == [[format_number(value)] for value in expected]
    driver.page.get_by_role("button", name="Draw anyway").click()
    driver.settle()
    labels = ".multiples button[aria-label*=':']"
    assert driver.page.locator(".multiples button").count() == 6 * 12
    assert driver.page.locator(labels).count() > 0
    driver.page.get_by_role("button", name="Remove sentence 2").click()  # it named the heads
    driver.settle()
    assert driver.page.locator(".multiples button").count() == 6 * 12
    assert driver.page.locator(labels).count() == 0
    driver.page.get_by_role("button", name="Follow this row step by step").click()
    assert driver.page.get_by_role("tab", selected=True).inner_text() == "How attention works"
    driver.page.locator("#attention .units [aria-pressed=true]", has_text="bank").wait_for()


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
    driver.page.keyboard.press("Escape")
    assert not enlarged.is_visible()


def test_tints_remain_with_forced_colors_and_in_print(new_driver: NewDriver) -> None:
    """A map with many columns shows no numbers, so it would be blank without its tints."""
    text = "He cashed a check at the bank and then he walked along the river."
    driver = new_driver(forced_colors="active").open_texts(text, "bank", explore=True)
    colors, adjusted = driver.page.locator("#map .narrow td:not(.itself, .extra, .corner)").evaluate_all(
        """(cells) => ["backgroundColor", "printColorAdjust"].map(
            (name) => [...new Set(cells.map((cell) => getComputedStyle(cell)[name]))])"""
    )
    assert {color[:17] for color in colors} == {"rgba(52, 88, 200,"}
    assert adjusted == ["exact"]


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


RECORD = """() => {
    window.visited = [];
    const observer = new MutationObserver(() => window.visited.push(document.querySelector("#layer").value));
    observer.observe(document.querySelector("#player output"), { childList: true });
}"""
MARK = "document.querySelector('.chart .tick.chosen')?.textContent"


def test_slider_moves_words_map_and_chart(driver: PageDriver, rest: httpx.Client) -> None:
    """The map is the rollout up to the slider's layer."""
    for layer in (1, 3, 6):
        check_layer(driver, rest, layer)


def check_layer(driver: PageDriver, rest: httpx.Client, layer: int) -> None:
    driver.slide(2).slide(layer)
    body = {"inputs": [TWO_SENTENCES[0]], "kind": "projection", "unit": "word", "special_tokens": "drop"}
    layers = {"layers": list(range(1, layer + 1)), "layer_reduce": "rollout", "decimals": 6}
    result = rest.post("/v1/attend", json=body | layers).raise_for_status().json()["results"][0]
    matrix = result["maps"][0]["matrix"]
    assert [row[:-1] for row in driver.cells()] == [[format_number(value) for value in row] for row in matrix]
    bank = [unit["text"] for unit in result["units"]].index("bank")
    total = sum(value for index, value in enumerate(matrix[bank]) if index != bank)
    expected = ["" if index == bank else format_number(value / total) for index, value in enumerate(matrix[bank])]
    assert driver.values() == expected
    assert driver.page.evaluate(MARK) == str(layer)
    similarity = format_number(compared(driver, rest)["layers"][layer]["cosine"][0][1])
    assert f"After {layer} layer{'s' if layer > 1 else ''}, their similarity is {similarity}" in driver.finding()
    assert driver.page.locator("#layers tr.chosen th").text_content() == str(layer)
    assert f"layers 1 to {layer}" in driver.page.locator("#combine option[value=rollout]").inner_text()


def test_layer_0_has_words_without_contributions(driver: PageDriver) -> None:
    driver.slide(0)
    assert set(driver.values()) == {""}
    assert driver.line() == "At layer 0, no other word contributes to bank."
    assert "Layer 0 has no map" in driver.page.locator("#map").inner_text()
    assert driver.finding().split(". ")[1].startswith("Before the first layer, their similarity is 0.9")
    assert driver.page.evaluate(MARK) == "0"
    driver.slide(6)
    assert "" in driver.values()
    assert len(set(driver.values())) > 3


def test_slider_uses_kept_responses(driver: PageDriver) -> None:
    driver.slide(2).slide(3)
    count = len(driver.sent_bodies())
    driver.slide(2).slide(3)
    assert len(driver.sent_bodies()) == count
    assert "layers 1 to 3" in driver.page.locator("#map caption").inner_text()


def test_play_visits_every_layer_and_stops(opened: PageDriver) -> None:
    opened.page.evaluate(RECORD)
    opened.page.get_by_role("button", name="Play").click()
    assert opened.page.get_by_role("button", name="Pause").is_visible()
    opened.page.wait_for_function("() => window.visited.at(-1) === '6'")
    opened.page.get_by_role("button", name="Play").wait_for()
    visited = opened.page.evaluate("window.visited.filter((layer, place, all) => layer !== all[place - 1])")
    assert visited == ["0", "1", "2", "3", "4", "5", "6"]
    assert "After 6 layers" in opened.finding()


def test_play_steps_by_hand_with_reduced_motion(new_driver: NewDriver) -> None:
    driver = new_driver(reduced_motion="reduce").open()
    step = driver.page.get_by_role("button", name="Next layer")
    for layer in ("0", "1", "2"):
        step.click()
        driver.settle()
        assert driver.page.locator("#layer").input_value() == layer
    assert driver.page.get_by_role("button", name="Pause").count() == 0


def test_slider_works_with_the_keyboard_and_names_the_layer(opened: PageDriver) -> None:
    opened.tab_to("#layer")
    opened.page.keyboard.press("ArrowLeft")
    opened.settle()
    assert opened.page.locator("#layer").get_attribute("aria-valuetext") == "5 of 6, after layer 5"
    assert opened.sent_bodies()[-1]["layers"] == [1, 2, 3, 4, 5]
    assert opened.page.locator("#finding").get_attribute("aria-live") == "polite"


def paths(driver: PageDriver) -> list[tuple[float, float]]:
    """Return the x coordinates where the curves between words start and end."""
    drawn = driver.page.locator(".links path").evaluate_all("(all) => all.map((path) => path.getAttribute('d'))")
    numbers = [d.replace("M", " ").replace("C", " ").split() for d in drawn]
    return [(float(parts[0]), float(parts[-2])) for parts in numbers]


def test_curves_link_a_word_to_its_contributors(opened: PageDriver) -> None:
    """Curves appear on hover and on focus, end at the word, and disappear afterwards."""
    strip = opened.page.get_by_role("group", name="Words of sentence 1", exact=True)
    word = strip.get_by_role("button", name="bank")
    assert paths(opened) == []
    for action in ("hover", "focus"):
        getattr(word, action)()
        origin, box = strip.bounding_box(), word.bounding_box()
        assert origin is not None
        assert box is not None
        center = box["x"] + box["width"] / 2 - origin["x"]
        drawn = paths(opened)
        assert len(drawn) == 6
        assert [end for _, end in drawn] == pytest.approx([center] * 6, abs=1)
        assert all(start != end for start, end in drawn)
        opened.page.mouse.move(0, 0)
        opened.page.locator("#share").focus()
        assert paths(opened) == []


def test_play_can_be_paused_and_the_slider_stops_it(opened: PageDriver) -> None:
    opened.page.get_by_role("button", name="Play").click()
    opened.page.get_by_role("button", name="Pause").click()
    opened.settle()
    assert opened.page.locator("#layer").input_value() == "0"
    opened.page.get_by_role("button", name="Play").click()
    opened.slide(4)
    assert opened.page.get_by_role("button", name="Play").is_visible()
    assert opened.page.locator("#layer").input_value() == "4"


def test_keyboard_reaches_a_cell(driver: PageDriver) -> None:
    """Tab reaches the words, the controls and the table; arrow keys move within them."""
    driver.tab_to(".unit")
    assert driver.focused().startswith("bank")
    driver.page.keyboard.press("ArrowLeft")
    assert driver.focused().startswith("the")
    assert driver.line(1).startswith("Contributions to the")
    driver.page.keyboard.press("Home")
    driver.page.keyboard.press("Enter")
    driver.settle()
    assert driver.page.locator("#map tr.chosen th").inner_text() == "He"
    assert driver.focused().startswith("He")

    driver.tab_to("#kind")
    driver.page.keyboard.type("probs")
    driver.settle()
    assert driver.sent_bodies()[-1]["kind"] == "probs"
    assert driver.page.evaluate("document.activeElement.id") == "kind"

    driver.tab_to("#map td[data-place]")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:0"
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "End", "ArrowLeft", "ArrowUp", "ArrowUp"):
        driver.page.keyboard.press(key)
    # The last column is the excluded mass, and the one before it the full stop.
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:7"
    assert driver.page.locator("#map .readout").inner_text() == f"{driver.focused()}. Follow it step by step"
    assert driver.focused().startswith("He attends to . with weight 0.")
    driver.page.keyboard.press("Control+Home")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "0:0"
    driver.page.keyboard.press("Control+End")
    assert driver.page.evaluate("document.activeElement.dataset.place") == "7:8"


def test_keyboard_reaches_the_comparison(driver: PageDriver) -> None:
    """Type a third sentence, select a thumbnail, and change the measure."""
    driver.tab_to("#add")
    driver.page.keyboard.press("Enter")
    driver.page.keyboard.type("The bank lends money.")
    driver.settle()
    assert len(driver.sent_bodies("/v1/compare")[-1]["occurrences"]) == 3

    driver.tab_to("#measure")
    driver.page.keyboard.press("ArrowDown")
    driver.settle()
    assert driver.page.locator("#measure").input_value() == "centered"
    assert driver.page.evaluate("document.activeElement.id") == "measure"
    driver.tab_to("#comparison .request summary")
    driver.page.keyboard.press("Enter")
    assert driver.page.locator("#comparison pre").is_visible()

    driver.tab_to(".multiples button")
    driver.page.keyboard.press("ArrowDown")
    driver.page.keyboard.press("ArrowRight")
    assert driver.focused().startswith("layer 2, head 1")
    driver.page.keyboard.press("Space")
    driver.settle()
    assert driver.focused().startswith("layer 2, head 1")
    assert driver.sent_bodies()[-1]["heads"] == [1]


def test_focus_is_visible(driver: PageDriver) -> None:
    """Every Tab stop must have an outline."""
    seen = set()
    for _ in range(80):
        driver.page.keyboard.press("Tab")
        name, width, style = driver.page.evaluate(
            """() => { const drawn = getComputedStyle(document.activeElement);
                return [document.activeElement.tagName, parseFloat(drawn.outlineWidth), drawn.outlineStyle]; }"""
        )
        if name == "BODY":
            break
        seen.add(name)
        assert width >= 2, name
        assert style == "solid", name
    assert {"INPUT", "BUTTON", "SELECT", "TD", "SUMMARY", "DIV"} <= seen


def test_tabs_follow_the_aria_pattern(opened: PageDriver) -> None:
    """There is a single Tab stop, arrow keys select without wrapping around, and the panel comes next in focus
    order.
    """
    opened.tab_to("[role=tab]")
    assert opened.focused() == "Word in context"
    opened.page.keyboard.press("ArrowRight")
    assert opened.focused() == "Similarity"
    tabs = opened.page.get_by_role("tab")
    states = [tabs.nth(place).get_attribute("aria-selected") for place in range(2)]
    assert states == ["false", "true"]
    assert opened.page.locator("#similarity").is_visible()
    assert not opened.page.locator("#context").is_visible()
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.id") == "score"
    opened.tab_to("[role=tab]")
    assert opened.focused() == "Similarity"
    opened.page.keyboard.press("Home")
    assert opened.page.locator("#context").is_visible()
