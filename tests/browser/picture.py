"""Draw the README's picture of the page: `python -m tests.browser.picture`, or `make picture`."""

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, SWITCHES
from tests.browser.page_driver import PageDriver
from tests.conftest import ROOT, serving

PICTURE = ROOT / "docs" / "images" / "page.png"
SIZE = (1280, 1365)


def main() -> None:
    """Capture the opened page with the pointer on a word, down to the buttons below the chart."""
    with serving(model_dir=ROOT / "models" / "all-MiniLM-L6-v2") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        driver = PageDriver(page, server.rest).open()
        page.get_by_role("group", name="Words of sentence 1").get_by_role("button", name="bank").hover()
        driver.settle()
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
