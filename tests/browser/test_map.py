"""The attention map shows the server's values, and the controls change the request."""

from typing import Any

import httpx
import pytest

from tests.browser.page_driver import PageDriver, format_number

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


def test_renormalized_rows_sum_to_one(driver: PageDriver) -> None:
    """The tolerance allows for rounding to two digits."""
    driver.choose(kind="probs", combine="mean", head="mean", special="renormalize")
    for row in driver.cells():
        values = [float(text) for text in row[:-1]]
        assert sum(values) == pytest.approx(1, abs=0.005 * len(values))


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


def test_descriptions_match_the_view(driver: PageDriver) -> None:
    """Checks the descriptions of signs, layers and scaling."""
    for kind in ("projection", "norm", "block_norm", "probs"):
        for combine, layer in (("none", 1), ("none", 4), ("mean", 6), ("rollout", 5)):
            check_descriptions(driver, kind, combine, layer)


def check_descriptions(driver: PageDriver, kind: str, combine: str, layer: int) -> None:
    driver.choose(kind=kind, combine=combine, special="renormalize").slide(layer)
    kind_text, layer_text, special_text = (
        driver.page.locator(f"#{name}-meaning").inner_text() for name in ("kind", "layer", "special")
    )
    signed = kind == "projection" and combine != "rollout"
    assert ("Negative shares" in kind_text) == signed
    starts = {
        "none": f"Layer {layer}: ",
        "mean": f"Mean: the average of the maps of layers 1 to {layer}.",
        "rollout": f"Rollout: the product of the maps of layers 1 to {layer}",
    }
    assert layer_text.startswith(starts[combine])
    assert driver.page.locator("#combine").get_attribute("aria-describedby") == "layer-meaning"
    heads = driver.page.locator("#map thead th").all_inner_texts()
    assert ("and the bias keep" in special_text) == ("bias" in heads)
    assert "original scale" in special_text
    rows = [[float(text.replace("\u2212", "-")) for text in row] for row in driver.cells()]
    units = len(heads) - ("bias" in heads) - ("excluded" in heads)
    assert signed == ("absolute values" in special_text)
    for row in rows:
        assert sum(abs(value) for value in row[:units]) == pytest.approx(1, abs=0.005 * units)


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
    assert driver.page.locator(".multiples button").count() == 6 * 12
