"""Pages in a real browser: what they show, in light and dark, and that hostile text stays text."""

from browser import Browser, needs_browser

from shoal.pages.html import Html, escape, facts, grid, page, section, table
from shoal.pages.plots import SERIES, figure

HOSTILE = "<img src=x onerror=\"document.title='owned'\"> $\\frac{1}{2}$ & 'quotes'"


def whole() -> str:
    def draw(axes):
        axes.plot([0, 1, 2], [1.0, 0.5, 0.25], label=HOSTILE)
        axes.set_xlabel(HOSTILE)
        axes.legend()

    rows = [[HOSTILE, 1, 0.25], ["plain", 12345, None]]
    return page(
        HOSTILE,
        facts({"users": f"{943:,}", HOSTILE: HOSTILE}),
        grid(
            section("Curve", HOSTILE, figure(draw, HOSTILE)),
            section("Table", "", table(["name", "count", "share"], rows)),
        ),
        script="document.body.dataset.ran = 'yes';",
    )


def test_text_is_escaped_and_markup_is_not():
    assert escape("<b>") == "&lt;b&gt;"
    assert escape(Html("<b>")) == "<b>"
    assert "<img src=x" not in whole()


def test_plots_have_the_colours_of_the_page():
    picture = figure(lambda axes: axes.plot([0, 1], color=SERIES[1]) and None, "a line")
    assert "var(--c1)" in picture and SERIES[1] not in picture
    assert picture.startswith('<svg role="img" aria-label="a line"')


@needs_browser
def test_a_page_in_a_browser(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(whole())
    with Browser() as browser:
        browser.open(file.as_uri())
        assert browser.evaluate("document.body.dataset.ran") == "yes"
        assert browser.text("h1") == HOSTILE
        assert HOSTILE in browser.evaluate("document.querySelector('svg').textContent")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        cells = "[...document.querySelectorAll('td.number')].map(one => one.innerText)"
        assert browser.evaluate(cells) == ["1", "0.2500", "12,345", "–"]
        light = browser.screenshot(tmp_path / "light.png")
        paper = "getComputedStyle(document.body).backgroundColor"
        assert browser.evaluate(paper) == "rgb(255, 255, 255)"
        browser.dark()
        assert browser.evaluate(paper) == "rgb(18, 23, 31)"
        assert browser.screenshot(tmp_path / "dark.png") != light
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.screenshot(tmp_path / "narrow.png")[:4] == b"\x89PNG"
        assert browser.requests == [file.as_uri()]
        assert browser.errors == []


@needs_browser
def test_only_the_script_of_the_page_runs(tmp_path):
    file = tmp_path / "page.html"
    bad = Html("<script>document.title = 'owned'</script><img src='https://example.com/x.png'>")
    file.write_text(page("safe", bad))
    with Browser() as browser:
        browser.open(file.as_uri())
        assert browser.evaluate("document.title") == "safe"
        assert any("Content Security Policy" in error for error in browser.errors)
