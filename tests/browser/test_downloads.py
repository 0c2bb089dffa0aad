"""Downloads of figures and numbers: PNG, SVG and CSV of the chart and the map."""

import codecs
import csv
import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from tests.browser.page_driver import PageDriver
from tests.browser.test_opening import compared

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def save(driver: PageDriver, tmp_path: Path) -> Callable[[str, str], bytes]:
    def press(label: str, form: str) -> bytes:
        group = driver.page.get_by_role("group", name=f"Save {label}")
        with driver.page.expect_download() as started:
            group.get_by_role("button", name=form).click()
        assert started.value.suggested_filename.startswith("attendant-")
        assert started.value.suggested_filename.endswith(f".{form.lower()}")
        path = tmp_path / started.value.suggested_filename
        started.value.save_as(path)
        return path.read_bytes()

    return press


def parse_csv(content: bytes) -> list[list[Any]]:
    def value(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text

    return [[value(text) for text in row] for row in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))]


@pytest.mark.parametrize("label", ["chart", "map"])
def test_png_has_the_pixels_of_the_figure(driver: PageDriver, save: Callable[[str, str], bytes], label: str) -> None:
    """The image has twice the figure's resolution, and is not blank."""
    content = save(label, "PNG")
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    size = struct.unpack(">II", content[16:24])
    root = ElementTree.fromstring(save(label, "SVG"))
    assert size == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))
    colors = driver.page.evaluate(
        """async (bytes) => {
            const image = await createImageBitmap(new Blob([new Uint8Array(bytes)], { type: "image/png" }));
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer)).size;
        }""",
        list(content),
    )
    assert colors > 20
    assert driver.errors == []


def test_svg_of_the_map_has_a_rectangle_per_cell_and_the_words(
    driver: PageDriver, save: Callable[[str, str], bytes]
) -> None:
    root = ElementTree.fromstring(save("map", "SVG"))
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert texts[0] == "Sentence 1, projection, rollout of all layers"
    assert texts.count("cashed") == 2
    tinted = [node for node in root.iter(f"{SVG}rect") if "fill-opacity" in node.attrib]
    assert 20 < len(tinted) <= 8 * 7
    assert not [node for node in root.iter() if "style" in node.attrib or "class" in node.attrib]


def test_figures_of_a_text_with_control_characters(driver: PageDriver, save: Callable[[str, str], bytes]) -> None:
    """Text copied from a PDF may contain them. XML does not allow them."""
    driver.type(1, "The ba\u0002nk is o\uffffpen.").page.get_by_role("radio", name="Tokens").check()
    driver.settle()
    root = ElementTree.fromstring(save("map", "SVG"))
    assert {"ba\ufffdnk", "o\ufffdpen"} <= {node.text for node in root.iter(f"{SVG}text")}
    assert save("map", "PNG").startswith(b"\x89PNG\r\n\x1a\n")


def test_svg_of_the_chart_does_not_need_the_style_sheet(driver: PageDriver, save: Callable[[str, str], bytes]) -> None:
    root = ElementTree.fromstring(save("chart", "SVG"))
    (line,) = [node for node in root.iter(f"{SVG}polyline") if "context" in node.attrib["class"]]
    assert line.attrib["fill"] == "none"
    assert line.attrib["stroke"].startswith("rgb(")


def test_csv_of_the_map_has_the_numbers_of_the_response(
    driver: PageDriver, rest: httpx.Client, save: Callable[[str, str], bytes]
) -> None:
    """The text contains a comma and a quote, which CSV must escape. Excel reads UTF-8 only after a byte order mark."""
    driver.type(1, 'He said "bank", then left.')
    content = save("map", "CSV")
    assert content.startswith(codecs.BOM_UTF8)
    rows = parse_csv(content)
    result = rest.post("/v1/attend", json=driver.sent_bodies()[-1]).json()["results"][0]
    units = [unit["text"] for unit in result["units"]]
    assert {",", '"'} <= set(units)
    assert rows[0] == ["", *units, "excluded"]
    attention_map = result["maps"][0]
    excluded = attention_map["excluded_mass"]
    assert [row[0] for row in rows[1:]] == units
    assert [row[1:] for row in rows[1:]] == [
        [*values, excluded[index]] for index, values in enumerate(attention_map["matrix"])
    ]


def test_csv_of_the_chart_has_a_column_per_pair(
    driver: PageDriver, rest: httpx.Client, save: Callable[[str, str], bytes]
) -> None:
    rows = parse_csv(save("chart", "CSV"))
    layers = compared(driver, rest)["layers"]
    assert rows[0] == ["layer", "dictionary entries", "sentences 1 and 2, in context"]
    assert rows[1:] == [[layer["layer"], 1.0, layer["cosine"][0][1]] for layer in layers]
