"""The looks of a report: its style sheet and the few lines of script that sort tables.

Everything is inline; the page asks nothing of the network and its policy forbids it to.
"""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #566474; --faint: #8793a1;
  --line: #e2e6eb; --grid: #e9edf1; --band: #2f6fb51f; --link: #1f5fa8;
  --success: #14866d; --failure: #e39a2d; --unjudged: #6a8fc4; --errored: #c2344d;
  --s0: #2263a8; --s1: #c9571c; --s2: #14866d; --s3: #8a4fb0; --s4: #a07d10; --s5: #5a6573;
  --good: #0f7a5f; --bad: #b3273f; --shadow: 0 1px 2px #1020301a, 0 6px 24px -12px #10203026;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151b; --card: #181f27; --ink: #e8edf2; --soft: #a6b2bf; --faint: #7b8896;
    --line: #2a343f; --grid: #242d37; --band: #6aa5e82b; --link: #7db4f0;
    --success: #35b795; --failure: #e5a84a; --unjudged: #7ea6df; --errored: #ea6a80;
    --s0: #6aa9ee; --s1: #f0905a; --s2: #35b795; --s3: #c08ae2; --s4: #d2b04a; --s5: #9aa7b5;
    --good: #4fc9a8; --bad: #f0798d; --shadow: 0 1px 2px #0006;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
    "Liberation Sans", Arial, sans-serif;
}
main { max-width: 1020px; margin: 0 auto; padding: 44px 24px 72px; }
header.top { margin-bottom: 28px; }
.eyebrow { color: var(--faint); font-size: 12px; font-weight: 600; letter-spacing: .09em;
  text-transform: uppercase; margin: 0 0 6px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.018em; margin: 0 0 8px; font-weight: 680;
  overflow-wrap: anywhere; }
h2 { font-size: 17px; letter-spacing: -.008em; margin: 0 0 2px; font-weight: 650; }
h3.cause { font-weight: 500; } h3.cause b { color: var(--errored); font-weight: 680; }
h3 { font-size: 14px; margin: 22px 0 6px; font-weight: 620; overflow-wrap: anywhere; }
p { margin: 0 0 10px; }
p.lead, p.note { color: var(--soft); }
p.note { font-size: 13.5px; max-width: 74ch; margin-bottom: 14px; }
p.warn { border-left: 3px solid var(--failure); padding-left: 12px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  box-shadow: var(--shadow); padding: 22px 24px 20px; margin: 0 0 18px; }
code, pre, .id { font-family: ui-monospace, SFMono-Regular, Menlo, "Liberation Mono", monospace;
  font-size: 12.5px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page);
  border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; margin: 8px 0;
  max-height: 320px; overflow: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px;
  margin: 0 0 18px; padding: 0; }
.tiles > div { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  box-shadow: var(--shadow); padding: 15px 18px 13px; min-width: 0; }
.tiles dt { color: var(--soft); font-size: 13px; margin: 0; }
.tiles dd { margin: 0; }
.tiles .big { font-size: 27px; line-height: 1.25; font-weight: 660; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.tiles .small { color: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin: 0 -6px; padding: 0 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }
caption { text-align: left; color: var(--soft); font-size: 13.5px; padding: 0 0 8px; }
th, td { padding: 7px 14px 7px 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-size: 12.5px; font-weight: 560; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 560; overflow-wrap: anywhere; min-width: 9ch; }
td.n, th.n { text-align: right; white-space: nowrap; }
td .reach { color: var(--soft); font-size: 12.5px; }
thead button { all: unset; cursor: pointer; }
thead button:focus-visible { outline: 2px solid var(--link); outline-offset: 3px;
  border-radius: 3px; }
thead th[aria-sort=ascending] button::after { content: " \\2191"; }
thead th[aria-sort=descending] button::after { content: " \\2193"; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 3px;
  margin-right: 7px; vertical-align: baseline; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; padding: 0;
  margin: 0 0 10px; color: var(--soft); font-size: 13px; }
.good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-size: 19px; font-weight: 640; letter-spacing: -.01em; margin: 8px 0 4px; }
figure { margin: 14px 0 4px; }
figcaption { color: var(--soft); font-size: 13.5px; margin-bottom: 8px; }
svg { display: block; width: 100%; min-width: 560px; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg text.tick { fill: var(--faint); font-size: 11px; }
svg text.value { fill: var(--soft); }
svg text.strong { font-weight: 600; }
svg .grid { stroke: var(--grid); }
svg .mark { stroke: var(--soft); stroke-width: 1.5; }
svg .base { stroke: var(--line); }
svg .cut { stroke: var(--faint); stroke-dasharray: 3 3; }
svg .mean { stroke: var(--ink); stroke-width: 1.5; }
svg .band { fill: var(--band); }
svg .reach { stroke-width: 2.5; stroke-linecap: round; }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); }
.s3 { --c: var(--s3); } .s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
svg .reach { stroke: var(--c); } svg .point { fill: var(--c); stroke: var(--card);
  stroke-width: 1.5; }
.swatch { background: var(--c); }
.o-success { fill: var(--success); --c: var(--success); }
.o-failure { fill: var(--failure); --c: var(--failure); }
.o-unjudged { fill: var(--unjudged); --c: var(--unjudged); }
.o-errored { fill: var(--errored); --c: var(--errored); }
details { margin: 6px 0 0; }
details > summary { cursor: pointer; color: var(--link); font-size: 13.5px; }
dl.facts { display: grid; grid-template-columns: minmax(110px, max-content) 1fr; gap: 5px 22px;
  margin: 10px 0 0; font-size: 14px; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }
footer { color: var(--faint); font-size: 12.5px; margin-top: 26px; }
@media (max-width: 640px) {
  main { padding: 26px 14px 48px; } section { padding: 18px 16px; } h1 { font-size: 24px; }
  dl.facts { grid-template-columns: 1fr; gap: 0; } dl.facts dd { margin-bottom: 8px; }
}
@media print {
  :root { --page: #fff; --shadow: none; }
  body { font-size: 11px; } main { max-width: none; padding: 0; }
  section, .tiles > div { break-inside: avoid; box-shadow: none; }
  section { padding: 12px 0; border: 0; border-top: 1px solid var(--line); border-radius: 0; }
  svg { min-width: 0; } details:not([open]) { display: none; } .scroll { overflow: visible; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const cell = row.cells[column];
        const raw = cell.dataset.sort ?? cell.textContent;
        const value = raw === "" ? NaN : Number(raw);
        return Number.isNaN(value) ? raw : value;
      };
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        if (typeof x === typeof y) return x < y ? -1 : x > y ? 1 : 0;
        return typeof x === "number" ? -1 : 1;
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].sort(order);
      body.append(...(up ? rows : rows.reverse()));
    });
  });
}
"""


def policy() -> str:
    """Return the page's content security policy: our own script and styles, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
