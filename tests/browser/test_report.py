"""The report page in a real browser: cells, filters, keys, both colour schemes, no network."""

import itertools
import os
import re
import shutil

import pytest

from mlx_patches import report
from mlx_patches.evidence import store
from mlx_patches.evidence.words import family_result, scenario_order

sync_api = pytest.importorskip("playwright.sync_api")

# A family of mlx-vlm 0.5.0, and a patch that its batches need there.
FAMILY, PATCH = next(
    (family, ids[0])
    for family, cells in store.load_set("mlx-vlm 0.5.0")["needs"].items()
    for ids in cells.values()
)
AUDIT = {
    "verdict": "1 known defect is not repaired here",
    "optional": "2 optional security patches, which may reject requests",
    "exit_code": 1,
    "distributions": [
        {"name": "mlx", "version": "0.31.2"},
        {"name": "mlx-vlm", "version": "0.5.0"},
    ],
    "broken_sets": [],
    "host": None,
    "active": False,
    "model": None,
    "findings": [f"{PATCH} is needed"],
    "patches": [
        {
            "patch": PATCH,
            "distribution": "mlx-vlm",
            "target": f"mlx_vlm.models.{FAMILY}.language:LanguageModel.__call__",
            "status": "disabled",
            "reason": "not active <b>here</b>",
            "finding": True,
        },
        {
            "patch": "host-request-parameters",
            "distribution": "starlette",
            "target": "starlette.requests:Request.json",
            "status": "disabled",
            "reason": "not active here",
            "finding": True,
        },
        {
            "patch": "model-code-consent",
            "distribution": "mlx-vlm",
            "target": "mlx_vlm.utils:load_model",
            "status": "disabled",
            "reason": "optional: request it by id; affected",
            "finding": False,
        },
    ],
}


def browser_path():
    """The path of an installed Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def chromium():
    found = browser_path()
    if found is None:
        message = "no Chromium or Chrome on this machine: the page is not tried in a browser"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def evidence():
    return store.load()


@pytest.fixture(scope="session")
def file(tmp_path_factory, evidence):
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.save(path, evidence, AUDIT)
    return path


def go_to(opened, file):
    opened.goto(file.as_uri())
    opened.wait_for_function("document.getElementById('written').textContent")


@pytest.fixture
def page(chromium, file):
    opened = chromium.new_page(viewport={"width": 1280, "height": 900})
    urls, complaints = [], []
    opened.on("request", lambda request: urls.append(request.url))
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    go_to(opened, file)
    yield opened
    opened.close()
    assert urls == [file.as_uri()]
    assert complaints == []


def list_families(page):
    # One call for all rows: the page has hundreds.
    rows = page.evaluate(
        """() => [...document.querySelectorAll("tr[data-family]")]
            .filter(row => row.checkVisibility())
            .map(row => [row.closest("section").dataset.package, row.dataset.family])"""
    )
    return [tuple(row) for row in rows]


def cell_of(page, family, release):
    return page.locator(f"button[aria-label^='{family}, {release}:']")


def test_patch_of_a_web_framework_has_a_row(chromium, tmp_path, evidence, page):
    """Whether or not it is in effect."""
    (row,) = page.locator("#environment tr:has-text('starlette')").all()
    assert "1 patch needed and not in effect" in row.inner_text()
    patches = [one | {"finding": False, "status": "pending"} for one in AUDIT["patches"]]
    opened = open_report(chromium, tmp_path, evidence, AUDIT | {"patches": patches})
    (row,) = opened.locator("#environment tr:has-text('starlette')").all()
    assert "1 patch applied as needed" in row.inner_text()
    opened.close()


def test_every_measured_cell_is_shown(page, evidence):
    cells = sum(len(one["without"]) for one in evidence)
    assert page.locator("tr[data-family] button").count() == cells
    for one in evidence:
        results = {f: family_result(pairs) for f, pairs in store.cell_pairs(one).items()}
        for family in list(results)[:3]:
            name = cell_of(page, family, one["set"]).get_attribute("aria-label")
            sign = {"green": "right", "repaired": "repaired", "not-built": "not built"}
            sign["cannot-batch"] = "cannot batch"
            wanted = sign.get(results[family], "red|partly|blunt")
            if (one["set"], results[family]) == ("mlx-vlm 0.5.0", "repaired"):
                wanted = "wrong in this environment"  # its patches are not in effect
            assert re.search(wanted, name), (name, results[family])


def test_cell_dialog_shows_evidence(page, evidence):
    one = next(one for one in evidence if one["set"] == "mlx-vlm 0.4.4")
    pairs = store.cell_pairs(one)["gemma4"]
    cell_of(page, "gemma4", "mlx-vlm 0.4.4").click()
    dialog = page.get_by_role("dialog", name="gemma4 in mlx-vlm 0.4.4")
    assert dialog.is_visible()
    measured = [name for name, pair in pairs.items() if pair[0] != "n"]
    rows = dialog.locator("table").first.locator("tbody tr")
    assert rows.count() == len(measured)
    # Wrong scenarios come first.
    measured.sort(key=lambda name: ("r" not in pairs[name], scenario_order(name)))
    for row, name in zip(rows.all(), measured, strict=True):
        assert row.locator("th").inner_text().startswith(name)
        words = [cell.inner_text().split()[-1] for cell in row.locator("td").all()[:2]]
        assert "".join(word[0] for word in words) == pairs[name]
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("gemma4, mlx-vlm 0.4.4")


def test_verdict_is_the_heading(page):
    assert page.locator("h1").inner_text() == AUDIT["verdict"]
    assert page.get_by_role("heading", name="Model families that are right").is_visible()
    assert page.locator("th", has_text="families right → with patches").count() == 2


def test_optional_patches_are_counted_once(page):
    shown = page.locator("#environment").inner_text()
    assert shown.count("optional") == 1 and f"{AUDIT['optional']}." in shown
    assert "switched off" not in shown


def test_scenario_of_several_places_is_listed_once(page, evidence):
    one = next(one for one in evidence if one["set"] == "mlx-lm 0.32.2")
    pairs = store.cell_pairs(one)["gemma3_text"]
    assert any("@" in name for name in pairs)
    cell_of(page, "gemma3_text", one["set"]).click()
    table = page.get_by_role("dialog").locator("table").first
    lines = [row.inner_text() for row in table.locator("tbody tr").all()]
    assert len(set(lines)) == len(lines) < len([p for p in pairs.values() if p[0] != "n"])
    assert any("CUDA" in line and "bfloat16" in line for line in lines)


def test_dialog_is_a_list_on_a_telephone(chromium, tmp_path, evidence):
    opened = open_report(
        chromium, tmp_path, evidence, AUDIT, viewport={"width": 400, "height": 800}
    )
    cell_of(opened, "gemma4", "mlx-vlm 0.4.4").click()
    dialog = opened.get_by_role("dialog")
    assert dialog.evaluate("one => one.scrollWidth <= one.clientWidth")
    for part in (".wide", "table", "tr"):
        assert dialog.locator(part).first.evaluate("one => one.scrollWidth <= one.clientWidth + 1")
    label = "one => getComputedStyle(one, '::before').content"
    assert "severity" in dialog.locator("td.severity").first.evaluate(label)
    opened.close()


def test_filters(page, evidence):
    everything = list_families(page)
    page.locator("#package").select_option("mlx-lm")
    assert list_families(page) == [row for row in everything if row[0] == "mlx-lm"]
    page.locator("#family").fill("GeMMa")
    wanted = [row for row in everything if row[0] == "mlx-lm" and "gemma" in row[1]]
    assert list_families(page) == wanted
    assert page.locator("#count").inner_text().startswith(f"{len(wanted)} of {len(everything)}")
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector("tr[hidden]", state="detached")
    assert list_families(page) == everything
    page.locator("#patch").select_option(PATCH)
    concerned = [
        (package["name"], family)
        for package in report.content(evidence)["packages"]
        for family, cells in package["families"].items()
        if any(
            PATCH in {*cell["row"], *itertools.chain(*cell["needs"].values())}
            for cell in cells
            if cell
        )
    ]
    assert list_families(page) == concerned
    assert ("mlx-vlm", FAMILY) in concerned and len(concerned) < len(everything)


def test_keyboard_navigation(page):
    page.locator("#package").select_option("mlx-lm")
    page.get_by_role("button", name="Clear").focus()
    names = []
    for key in ("Tab", "ArrowRight", "ArrowDown", "ArrowLeft", "End", "Home"):
        page.keyboard.press(key)
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label') || ''"))
    places = [name.partition(":")[0] for name in names if ", mlx-lm " in name]
    families = [family for package, family in list_families(page) if package == "mlx-lm"]
    releases = page.locator("section[data-package='mlx-lm'] thead tr").first.locator("th").all()
    newest, second, *_, oldest = [release.inner_text() for release in releases[1:]]
    assert places[-6:] == [
        f"{families[0]}, mlx-lm {newest}",
        f"{families[0]}, mlx-lm {second}",
        *[f"{families[1]}, mlx-lm {release}" for release in (second, newest, oldest, newest)],
    ]
    page.keyboard.press("Enter")
    assert page.get_by_role("dialog").is_visible()


def test_hostile_text_is_escaped(chromium, tmp_path, evidence):
    hostile = "</script><script>window.ran = true</script><img src=x onerror='window.ran = true'>"
    one = {
        "set": "mlx-lm 9.9.9",
        "versions": {"mlx-lm": "9.9.9"},
        "without": {hostile: {"engine": "r"}},
        "details_without": {hostile: {"engine": hostile}},
    }
    report.save(tmp_path / "page.html", [one], {**AUDIT, "findings": [hostile]})
    opened = chromium.new_page()
    go_to(opened, tmp_path / "page.html")
    opened.locator("tr[data-family] button").click()
    assert hostile in opened.get_by_role("dialog").inner_text()
    assert opened.evaluate("window.ran") is None
    opened.close()


def open_report(chromium, tmp_path, evidence, audit, **view):
    path = tmp_path / "page.html"
    report.save(path, evidence, audit)
    opened = chromium.new_page(**(view or {"viewport": {"width": 1280, "height": 900}}))
    go_to(opened, path)
    return opened


def wrong_solo(evidence, name, batch=""):
    """A family with this result in a release, and the one patch that a single request needs."""
    distribution, version = name.split()
    (package,) = (p for p in report.content(evidence)["packages"] if p["name"] == distribution)
    column = [one["version"] for one in package["releases"]].index(version)
    cells = {family: row[column] for family, row in package["families"].items() if row[column]}
    return next(
        (family, *cell["solo"])
        for family, cell in cells.items()
        if len(cell["solo"]) == 1 and batch in ("", cell["result"])
    )


def test_solo_defect_is_shown(chromium, tmp_path, page, evidence):
    family, id_ = wrong_solo(evidence, "mlx-vlm 0.7.10", "repaired")
    cell = cell_of(page, family, "mlx-vlm 0.7.10")
    assert cell.inner_text() == "1+"
    assert "even a single request gets wrong text" in cell.get_attribute("aria-label")
    cell.click()
    dialog = page.get_by_role("dialog")
    assert f"Without {id_} even a single request gets wrong text." in dialog.inner_text()
    assert f"mlx-patches probe {id_}" in dialog.inner_text()
    page.keyboard.press("Escape")
    page.locator("#patch").select_option(id_)
    assert ("mlx-vlm", family) in list_families(page)

    family, id_ = wrong_solo(evidence, "mlx-lm 0.31.3")
    parts = {part: {family: {"trim": "g"}} for part in ("without", "with")}
    green = {"set": "mlx-lm 0.31.3", "versions": {}, **parts}
    here = [{"name": "mlx-lm", "version": "0.31.3"}]
    patch = {"patch": id_, "distribution": "mlx-lm", "target": "", "reason": ""}
    for status, sign in (("disabled", "!"), ("applied", "1+")):
        own = [{**patch, "status": status, "finding": status == "disabled"}]
        audit = {**AUDIT, "distributions": here, "patches": own, "active": True}
        opened = open_report(chromium, tmp_path, [green], audit)
        assert opened.locator("tr[data-family] button").inner_text() == sign
        assert opened.locator("td.total").first.inner_text() == "0 → 1"
        opened.close()


CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => {
    const parts = numbers(text).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if ((numbers(color)[3] ?? 1) > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = "h1, p, th, td, small, output, label, .mark, summary";
  const seen = (node) => node.textContent.trim() && node.checkVisibility();
  return [...document.querySelectorAll(texts)].filter(seen).map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 80)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_in_both_schemes(page, scheme, tmp_path):
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 100
    assert min(found)[0] >= 4.5, min(found)
    picture = tmp_path / f"{scheme}.png"
    page.screenshot(path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000


def test_screen_reader_labels(page):
    grid = page.get_by_role("grid", name="mlx-lm: model families by release")
    assert grid.get_by_role("columnheader").count() > 3
    assert grid.get_by_role("rowheader").count() > 100
    unnamed = page.locator("button:not([aria-label])").all()
    assert all(one.inner_text().strip() for one in unnamed)
    inputs = page.locator("select, input").all()
    assert all(one.evaluate("node => node.labels.length === 1") for one in inputs)
