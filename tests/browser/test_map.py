"""The map: its numbers are the server's, and every picker changes what is asked."""

from typing import Any

import httpx
import pytest

from tests.browser.page_driver import PageDriver, written

ALPHAS = """() => [...document.querySelectorAll(".multiples canvas")].map((canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return Array.from(pixels).filter((_, place) => place % 4 === 3);
})"""
Fields = dict[str, Any]

# What is picked, and what the request then says, by the names of the contract.
VIEWS: dict[str, tuple[dict[str, str], Fields]] = {
    "projection": ({"layer": "4"}, {"kind": "projection", "layers": [4], "layer_reduce": "none"}),
    "rollout": ({"special": "renormalize"}, {"layer_reduce": "rollout", "special": "renormalize"}),
    "probs of a head": ({"kind": "probs", "layer": "3", "head": "5"}, {"heads": [5], "head_reduce": "none"}),
    "scores": ({"kind": "scores", "layer": "2", "head": "max"}, {"kind": "scores", "head_reduce": "max"}),
    "norm": ({"kind": "norm", "layer": "mean", "head": "sum"}, {"layers": "all", "layer_reduce": "mean"}),
    "norm of a head": ({"kind": "norm", "layer": "1", "head": "0", "special": "keep"}, {"special": "keep"}),
    "block norm": ({"kind": "block_norm", "layer": "6"}, {"kind": "block_norm", "layers": [6]}),
}


def first(rest: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The server's own result for the first sentence."""
    result: dict[str, Any] = rest.post("/v1/attend", json=body).raise_for_status().json()["results"][0]
    return result


@pytest.mark.parametrize("name", VIEWS)
def test_cells_equal_the_response(driver: PageDriver, rest: httpx.Client, name: str) -> None:
    """And the pickers ask for it. Excluded mass and the bias included; four digits in the name that is read out."""
    picked, expected = VIEWS[name]
    driver.choose(**picked)
    body = driver.asked()[-1]
    assert {field: body[field] for field in expected} == expected
    result = first(rest, body)
    (found,) = result["maps"]
    extras = [found["bias_share"]] if found["bias_share"] else []
    extras += [found["excluded_mass"]] if found["excluded_mass"] and not result["units"][0]["special"] else []
    rows = [row + [extra[place] for extra in extras] for place, row in enumerate(found["matrix"])]
    assert driver.cells() == [[written(value) for value in row] for row in rows]
    heads = driver.page.locator("#map thead th").all_inner_texts()
    units = [unit["text"] for unit in result["units"]]
    assert heads[: len(units)] == units == driver.page.locator("#map tbody th").all_inner_texts()
    spoken = driver.page.locator('#map [data-place="1:3"]').get_attribute("aria-label")
    assert spoken is not None
    assert (spoken.split()[0], spoken.split()[-1]) == (units[1], units[3])
    assert written(rows[1][3]) in spoken.split()


def test_rows_sum_to_one_when_they_are_scaled(driver: PageDriver) -> None:
    """Within what rounding to two digits can do."""
    driver.choose(kind="probs", layer="mean", head="mean", special="renormalize")
    for row in driver.cells():
        values = [float(text) for text in row[:-1]]
        assert sum(values) == pytest.approx(1, abs=0.005 * len(values))


def test_tokens_instead_of_words(driver: PageDriver) -> None:
    """`cashed` is two tokens; the word that was chosen stays chosen."""
    driver.page.get_by_label("Tokens", exact=True).check()
    driver.settle()
    assert driver.asked()[-1]["unit"] == "token"
    texts = driver.page.locator(".strip").first.locator(".text").all_inner_texts()
    assert texts == ["He", "cash", "ed", "a", "check", "at", "the", "bank", "."]
    assert driver.page.locator(".strip [aria-pressed=true] .text").first.inner_text() == "bank"


def test_unsupported_choices_are_disabled_with_a_reason(driver: PageDriver) -> None:
    """And what would be refused cannot be asked."""
    assert driver.page.locator("#head").is_disabled()
    assert "projection exists only with its heads summed" in driver.page.locator("#head-reason").inner_text()
    driver.choose(kind="scores")
    assert driver.page.locator("#layer").input_value() == "mean"
    assert driver.page.locator("#layer option[value=rollout]").is_disabled()
    assert driver.page.locator("#special option[value=renormalize]").is_disabled()
    driver.choose(kind="norm")
    assert driver.page.locator("#head").input_value() == "sum"
    assert driver.complaints == []


def test_choice_returns_when_the_kind_supports_it_again(driver: PageDriver) -> None:
    """Scores have no rollout and no renormalising; the kinds after them have."""
    driver.choose(special="renormalize").choose(kind="scores").choose(kind="norm").choose(kind="projection")
    assert driver.page.locator("#layer").input_value() == "rollout"
    assert driver.page.locator("#special").input_value() == "renormalize"
    assert (driver.asked()[-1]["layer_reduce"], driver.asked()[-1]["special"]) == ("rollout", "renormalize")
    driver.choose(kind="scores", layer="3").choose(kind="projection")
    assert driver.page.locator("#layer").input_value() == "3"


@pytest.mark.parametrize("layer", ["1", "4", "mean", "rollout"])
@pytest.mark.parametrize("kind", ["projection", "norm", "block_norm", "probs"])
def test_description_of_a_view_is_true(driver: PageDriver, kind: str, layer: str) -> None:
    """Of the sign, of the layers, and of what scaling does to a row and does not to what was left out."""
    driver.choose(kind=kind, layer=layer, special="renormalize")
    of_kind, of_layer, of_special = (
        driver.page.locator(f"#{name}-meaning").inner_text() for name in ("kind", "layer", "special")
    )
    assert ("Negative: it pushed" in of_kind) == (kind == "projection" and layer != "rollout")
    starts = {"mean": "Mean: the average", "rollout": "Rollout: the layers multiplied"}
    assert of_layer.startswith(starts.get(layer, f"Layer {layer} alone"))
    assert driver.page.locator("#layer").get_attribute("aria-describedby") == "layer-meaning"
    heads = driver.page.locator("#map thead th").all_inner_texts()
    assert ("the bias stay" in of_special) == ("bias" in heads)
    assert "on the scale from before" in of_special
    rows = [[float(text.replace("\u2212", "-")) for text in row] for row in driver.cells()]
    units = len(heads) - ("bias" in heads) - ("left out" in heads)
    signed = kind == "projection" and layer != "rollout"
    assert signed == ("signs aside" in of_special)
    for row in rows:
        assert sum(abs(value) for value in row[:units]) == pytest.approx(1, abs=0.005 * units)


def test_pointing_at_a_word_shows_what_it_draws_on(driver: PageDriver) -> None:
    """And the chosen word again when the pointer leaves."""
    before = driver.line(1)
    driver.page.locator(".strip").first.get_by_role("button", name="cashed").hover()
    assert driver.line(1).startswith("cashed draws ")
    driver.page.locator("h1").hover()
    assert driver.line(1) == before


def test_choosing_a_word_opens_its_sentence(driver: PageDriver) -> None:
    """The map below is that sentence's, its row stands out."""
    driver.page.locator(".strip").nth(1).get_by_role("button", name="river").click()
    driver.settle()
    assert driver.page.locator("#open").input_value() == "1"
    assert driver.page.locator("#map tr.chosen th").inner_text() == "river"
    assert driver.page.locator("#map tbody th").all_inner_texts()[0] == "They"


def test_own_contribution_can_count(driver: PageDriver, rest: httpx.Client) -> None:
    """Then the strip shows the map's own numbers, without a new request."""
    asked = len(driver.asked())
    driver.page.get_by_label("Count what a word takes from itself").check()
    result = first(rest, driver.asked()[0])
    bank = [unit["text"] for unit in result["units"]].index("bank")
    shown = driver.page.locator(".strip").first.locator(".value").all_inner_texts()
    assert shown == [written(value) for value in result["maps"][0]["matrix"][bank]]
    assert "from itself" in driver.line(1)
    assert driver.page.locator("#scale").inner_text() == "The numbers are those of the map below."
    assert len(driver.asked()) == asked


@pytest.mark.parametrize("kind", ["projection", "norm", "scores"])
def test_card_and_matrix_show_the_same_digits(driver: PageDriver, kind: str) -> None:
    """Wherever the card's numbers are those of the map: one way to write a number."""
    for layer in ("1", "3", "6"):
        driver.choose(kind=kind, layer=layer)
        units = driver.page.locator("#map tbody th").all_inner_texts()
        row = driver.cells("#map tr.chosen")[0][: len(units)]
        row[units.index("bank")] = ""
        assert driver.page.locator(".strip").first.locator(".value").all_inner_texts() == row


def test_thumbnail_sets_the_pickers(driver: PageDriver) -> None:
    """Each layer and head has one; the kind becomes one that has heads."""
    assert driver.page.locator(".multiples button").count() == 6 * 12
    driver.page.get_by_role("button", name="layer 3, head 5").click()
    driver.settle()
    shown = {name: driver.page.locator(f"#{name}").input_value() for name in ("kind", "layer", "head")}
    assert shown == {"kind": "probs", "layer": "3", "head": "5"}
    body = driver.asked()[-1]
    assert (body["kind"], body["layers"], body["heads"]) == ("probs", [3], [5])
    pressed = driver.page.locator(".multiples [aria-pressed=true]")
    assert pressed.count() == 1
    assert pressed.get_attribute("aria-label") == "layer 3, head 5"


def test_thumbnail_has_the_pixels_of_its_map(driver: PageDriver, rest: httpx.Client) -> None:
    """One pixel a cell, opaque as the square root of its share of the largest."""
    body = driver.asked()[0] | {"kind": "probs", "layers": "all", "layer_reduce": "none", "decimals": None}
    maps = first(rest, body | {"heads": "all", "head_reduce": "none"})["maps"]
    largest = max(value for found in maps for row in found["matrix"] for value in row)
    alphas = driver.page.evaluate(ALPHAS)
    for found, shown in zip(maps, alphas, strict=True):
        expected = [255 * (value / largest) ** 0.5 for row in found["matrix"] for value in row]
        assert shown == pytest.approx(expected, abs=1.01)


def test_long_sentence_is_a_picture_with_the_row_as_a_table(driver: PageDriver, rest: httpx.Client) -> None:
    """The row of the chosen word, every number of it; the small pictures wait to be asked for."""
    text = " ".join(f"Day {number} went by on the bank of the river." for number in range(8))
    driver.type(1, text)
    result = first(rest, driver.asked()[-1])
    assert len(result["units"]) > 64
    size = driver.page.evaluate(
        "(() => { const c = document.querySelector('#map .heatmap'); return [c.width, c.height]; })()"
    )
    assert size == [len(result["units"])] * 2
    chosen = [unit["text"] for unit in result["units"]].index("bank")
    (found,) = result["maps"]
    expected = [*found["matrix"][chosen], found["excluded_mass"][chosen]]
    assert driver.cells("#map .matrix.row tbody tr") == [[written(value)] for value in expected]
    driver.page.get_by_role("button", name="Draw anyway").click()
    driver.settle()
    assert driver.page.locator(".multiples button").count() == 6 * 12
