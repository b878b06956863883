"""The report in a real browser: it draws, sorts, fits, says nothing to the console, asks nothing.

Needs a Chromium on PATH (Debian: `apt-get install chromium`); `ROLLMESH_NEEDS_BROWSER=1` makes its
absence a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollmesh.events import TelemetrySnapshot
from rollmesh.viewer.report.data import LostAttempt, ReportData
from rollmesh.viewer.report.page import page
from tests.unit.viewer_toys import episode, metric, result, timed

pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL = "</td><script>document.title = 'owned'; console.log('owned')</script><b id=evil>x</b>"

MEASURE = """
<script>
const box = (e) => {
  const r = e.getBoundingClientRect();
  return [r.width, r.height, r.left, r.right];
};
const lines = (e) => {
  const range = document.createRange();
  range.selectNodeContents(e);
  return range.getClientRects().length;
};
const all = (s) => [...document.querySelectorAll(s)];
const column = (table, n) => [...table.tBodies[0].rows].map((row) => row.cells[n].dataset.sort);
const tasks = all("table").find((t) => t.caption.textContent.startsWith("Intervals"));
const before = column(tasks, 1);
const button = tasks.querySelectorAll("thead th")[1].querySelector("button");
button.click();
const up = column(tasks, 1);
button.click();
const down = column(tasks, 1);
const out = document.createElement("pre");
out.id = "measured";
out.textContent = JSON.stringify({
  title: document.title,
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  sections: all("section, .tiles > div").map(box),
  charts: all("svg").map(box),
  marks: all("svg rect, svg circle").map(box),
  lines: all("tbody th").filter((e) => e.textContent === "predict").map(lines),
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
  evil: all("#evil").length,
  scripts: all("main script").length,
  sorted: {before, up, down, aria: tasks.querySelectorAll("thead th")[1].getAttribute("aria-sort")},
});
document.body.append(out);
</script>
"""


@pytest.fixture(scope="module")
def browser():
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    reason = f"no browser: none of {', '.join(NAMES)} is on PATH (apt-get install chromium)"
    if os.environ.get("ROLLMESH_NEEDS_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Look:
    """What a browser made of a page."""

    dom: str
    console: list[str]

    @property
    def measured(self):
        found = re.search(r'<pre id="measured">(.*?)</pre>', self.dom, re.DOTALL)
        assert found, self.dom[-2000:]
        text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return json.loads(text)


def look(browser, tmp_path, html, *arguments):
    file = tmp_path / "report.html"
    file.write_text(html, encoding="utf-8")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--log-level=0",
        *arguments,
        file.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Look(dom=done.stdout, console=console)


def measuring(html):
    """Return the page with a script of ours at its end, which its policy would not let run."""
    without = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert without != html
    return without.replace("</body>", f"{MEASURE}</body>")


def runs():
    rows = (
        metric("env.step"),
        metric("model.predict", "group.size", kind="count"),
        metric("env.step", "request.bytes", kind="bytes"),
    )
    telemetry = TelemetrySnapshot(horizon="session", rows=rows)
    lost = LostAttempt(episode=1, attempt=1, worker=0, cause=EVIL, last_lines=EVIL)
    made = []
    for place, name in enumerate(("first", "second")):
        episodes = timed(90, lanes=3)
        for number, one in enumerate(episodes):
            changes = {"task": "accb"[number % 4], "success": (number * 7 + place) % 5 > place}
            if number % 17 == 0:
                changes["error"] = f"EnvFailed: {EVIL}\n{EVIL}"
            fields = {name: getattr(one, name) for name in one.__slots__}
            episodes[number] = episode(
                **(fields | {"reward": fields.pop("total_reward")} | changes)
            )
        facts = {"plan_hash": EVIL, "packages": {"numpy": "2.1"}}
        made.append(
            ReportData(
                name=f"{name}{EVIL}",
                result=result(episodes, telemetry=telemetry, model=EVIL),
                facts=facts,
                lanes_per_worker=1,
                lost=(lost,),
            )
        )
    return made


def one_run():
    return page(runs()[:1])


# ------------------------------------------------------------------------------------ tests


@pytest.mark.parametrize("count", [1, 2])
def test_a_page_draws_everything_and_says_nothing_to_the_console(browser, tmp_path, count):
    html = page(runs()[:count])
    untouched = look(browser, tmp_path, html, "--dump-dom")
    assert untouched.console == []
    assert "<main>" in untouched.dom
    seen = look(browser, tmp_path, measuring(html), "--window-size=1100,900", "--dump-dom").measured
    assert len(seen["sections"]) >= 8
    assert len(seen["charts"]) >= 4
    assert len(seen["marks"]) > 90
    for width, height, left, right in seen["sections"] + seen["charts"]:
        assert width > 100
        assert height > 20
        assert left >= 0
        assert right <= 1100
    assert all(width > 0 and height > 0 for width, height, _, _ in seen["marks"])
    assert seen["scroll"] <= seen["width"] == 1100


def test_text_of_others_is_never_obeyed(browser, tmp_path):
    seen = look(browser, tmp_path, measuring(page(runs())), "--dump-dom")
    assert seen.console == []
    assert seen.measured["title"] != "owned"
    assert seen.measured["evil"] == 0
    assert seen.measured["scripts"] == 0


def test_its_policy_stops_a_script_that_is_not_its_own(browser, tmp_path):
    foreign = "<script>document.title = 'owned'</script></main>"
    html = one_run().replace("</main>", foreign)
    seen = look(browser, tmp_path, html, "--dump-dom")
    assert "<title>owned</title>" not in seen.dom
    assert any("Content Security Policy" in line for line in seen.console)


def test_tables_sort_by_number_both_ways(browser, tmp_path):
    found = look(browser, tmp_path, measuring(one_run()), "--dump-dom").measured["sorted"]
    assert found["aria"] == "descending"
    assert found["up"] == sorted(found["before"], key=int)
    assert found["down"] == found["up"][::-1]
    assert found["before"] not in (found["up"], found["down"])


def test_a_narrow_screen_scrolls_charts_and_not_the_page(browser, tmp_path):
    seen = look(
        browser, tmp_path, measuring(page(runs())), "--window-size=500,900", "--dump-dom"
    ).measured
    assert seen["scroll"] <= seen["width"]
    assert all(right <= seen["width"] for _, _, _, right in seen["sections"])


def test_a_narrow_screen_leaves_the_words_of_a_row_whole(browser, tmp_path):
    seen = look(
        browser, tmp_path, measuring(page(runs())), "--window-size=500,900", "--dump-dom"
    ).measured
    assert set(seen["lines"]) == {1}, "a word is not cut to a letter a line"


def test_light_and_dark_differ_and_both_can_be_read(browser, tmp_path):
    looks = [
        look(
            browser,
            tmp_path,
            measuring(one_run()),
            f"--blink-settings=preferredColorScheme={scheme}",
            "--dump-dom",
        ).measured
        for scheme in (0, 1)
    ]
    assert looks[0]["background"] != looks[1]["background"]
    for seen in looks:
        assert contrast(seen["background"], seen["ink"]) > 7


def contrast(one, other):
    """Return the contrast of two colours (WCAG 2, section 1.4.3)."""

    def luminance(color):
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_screenshot_is_not_blank(browser, tmp_path):
    picture = tmp_path / "page.png"
    look(browser, tmp_path, one_run(), "--window-size=1100,1600", f"--screenshot={picture}")
    colors = colors_of(picture)
    assert len(colors) > 100
    assert max(colors.values()) < 0.95 * sum(colors.values())


def colors_of(picture: Path):
    """Return how often each value of a byte row occurs in a PNG of 8-bit RGB or RGBA."""
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind in {2, 6}) == (8, True)
    channels = 3 if kind == 2 else 4
    body, place = b"", 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            body += data[place + 8 : place + 8 + length]
        place += length + 12
    return _pixels(zlib.decompress(body), width, height, channels)


def _pixels(raw, width, height, channels):
    """Undo the filters of a PNG and count its colours."""
    stride = width * channels
    before = bytearray(stride)
    counts: dict[bytes, int] = {}
    for row in range(height):
        start = row * (stride + 1)
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for i in range(stride):
            left = line[i - channels] if i >= channels else 0
            corner = before[i - channels] if i >= channels else 0
            line[i] = (line[i] + _predicted(kind, left, before[i], corner)) & 255
        before = line
        for i in range(0, stride, channels * 7):
            color = bytes(line[i : i + 3])
            counts[color] = counts.get(color, 0) + 1
    return counts


def _predicted(kind, left, up, corner):
    if kind == 4:
        near = left + up - corner
        a, b, c = abs(near - left), abs(near - up), abs(near - corner)
        return left if a <= b and a <= c else up if b <= c else corner
    return (0, left, up, (left + up) // 2)[kind]
