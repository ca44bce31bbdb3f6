"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// How a family fares in a release: a sign, so that colour never stands alone, and its meaning.
const FATES = {
  green: ["✓", "right as released"],
  repaired: ["+", "repaired: wrong as released, right with the patches"],
  partly: ["±", "partly repaired: the patches repair some scenarios, not all"],
  red: ["✗", "red: wrong in some scenario"],
  "cannot-batch": ["∅", "cannot batch: no scenario with several rows applies"],
  insensitive: ["?", "the tiny model is too blunt to tell"],
  "not-built": ["–", "not built: the lab could not make a model of it"],
};
const VERDICTS = {
  g: ["green", "✓ green"],
  r: ["red", "✗ red"],
  i: ["insensitive", "? insensitive"],
  x: ["not-built", "– not built"],
  n: ["not-built", "not applicable"],
};

// -- making elements: text is only ever put in as text -----------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const code = (text) => element("code", {}, text);

const mark = (kind, text) => element("span", { class: `mark ${kind}` }, text);

function button(attributes, text, choose) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", choose);
  return made;
}

// A table of lists: the first cell of each row is its header.
function list(columns, rows) {
  const body = rows.map(([first, ...rest]) => element("tr", {},
    element("th", { scope: "row" }, first),
    ...rest.map((cell, index) =>
      element("td", { class: columns[index + 1] === "what it said" ? "said" : "" }, cell))));
  const head = columns.map((column) => element("th", { scope: "col" }, column));
  return element("table", { class: "list" },
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function group(...parts) {
  const made = document.createDocumentFragment();
  made.append(...parts);
  return made;
}

const many = (count, word, words = `${word}s`) => `${count} ${count === 1 ? word : words}`;

const versions = (release) => Object.entries(release.versions).map((one) => one.join(" ")).join(", ");

// -- the evidence behind a cell ----------------------------------------------------------------

function show(title, ...parts) {
  byId("evidence-body").replaceChildren(element("h2", { id: "evidence-title" }, title), ...parts);
  byId("evidence").showModal();
  byId("evidence").scrollTop = 0;
}

function showCell(pack, release, family, cell) {
  const [sign, meaning] = FATES[cell.fate];
  const known = measuredWith(cell) ? "" : "; it was not measured with the patches";
  const needed = seen(cell);
  const parts = [
    element("p", {}, mark(cell.fate, sign), ` ${meaning}${known}.`),
    element("p", {}, element("small", {}, `Measured with ${versions(release)}.`)),
    scenarioTable(cell),
  ];
  if (needed.length) parts.push(element("h3", {}, "Patches needed"), patchList(needed));
  if (cell.row.length) {
    const title = needed.length ? "Not every repair was traced to its patches. Its row in the matrix names"
      : "Which patches it needs was not traced. Its row in the matrix names";
    parts.push(element("h3", {}, title), patchList(cell.row));
  }
  parts.push(element("h3", {}, "Reproduce, where this release is installed"),
    commands(`mlx-patches lab --model ${pack.name}:${family} --both`,
      ...needed.map((id) => `mlx-patches probe ${id}`)));
  show(`${family} in ${pack.name} ${release.version}`, ...parts);
}

const measuredWith = (cell) => cell.pairs.split(" ").some((pair) => pair.length === 2);

// The patches that some scenario of a cell was seen to need, in the registry's order.
function seen(cell) {
  const needed = new Set(Object.values(cell.needs).flat());
  return Object.keys(data.patches).filter((id) => needed.has(id));
}

function scenarioTable(cell) {
  const [rows, spared] = [[], []];
  cell.pairs.split(" ").forEach((pair, index) => {
    const [name, description] = data.scenarios[index];
    if (pair[0] === "n") spared.push(name);
    if (pair[0] === "n" || pair === "-") return;
    const verdicts = [...pair].map((letter) => mark(...VERDICTS[letter]));
    const needs = (cell.needs[name] || []).flatMap((id) => [code(id), " "]);
    rows.push([group(name, element("small", {}, description)), verdicts[0],
      verdicts[1] || "not measured", group(...needs), said(cell.said[name])]);
  });
  const table = list(["scenario", "without patches", "with patches", "patches needed", "what it said"], rows);
  return spared.length ? group(table, element("p", {},
    element("small", {}, `Not applicable to it: ${spared.join(", ")}.`))) : table;
}

function said([without, with_] = [-1, -1]) {
  const [before, after] = [data.said[without], data.said[with_]];
  if (before === after || after === undefined) return before || "";
  return group(before ? `without: ${before}` : "", before ? element("br") : "", `with: ${after}`);
}

function patchList(ids) {
  return element("ul", {}, ...ids.map((id) => element("li", {}, code(id), `: ${data.patches[id] || ""}`)));
}

const commands = (...lines) => element("pre", {}, code(lines.join("\n")));

// -- this environment --------------------------------------------------------------------------

// The patches of a distribution here, by what is to be done: a patch counts where one target does.
function patchesHere(distribution) {
  const found = { open: new Set(), active: new Set(), chosen: new Set() };
  for (const one of data.audit.patches.filter((each) => each.distribution === distribution)) {
    if (one.finding) found.open.add(one.patch);
    else if (["applied", "pending"].includes(one.status)) found.active.add(one.patch);
    else if (one.status === "disabled") found.chosen.add(one.patch);
  }
  return found;
}

function sayHere(distribution) {
  const { open, active, chosen } = patchesHere(distribution);
  const parts = [];
  if (open.size) parts.push(`${many(open.size, "patch", "patches")} needed and not in effect`);
  if (active.size) parts.push(`${many(active.size, "patch", "patches")} applied as needed`);
  if (chosen.size) parts.push(`${chosen.size} left out by choice`);
  return parts.join(", ") || "nothing to repair";
}

// In the map: its fate, and how many patches are meant.
function signHere(distribution) {
  const { open, active } = patchesHere(distribution);
  if (open.size) return ["red", `${FATES.red[0]} ${open.size}`];
  return active.size ? ["repaired", `${FATES.repaired[0]} ${active.size}`] : ["green", FATES.green[0]];
}

function showHere(distribution, version) {
  const own = data.audit.patches.filter((one) => one.distribution === distribution);
  const idle = (one) => ["not-affected", "fixed-upstream", "absent"].includes(one.status);
  const table = (some) => list(["patch", "status", "reason", "target"], some.map((one) =>
    [group(code(one.patch), element("small", {}, data.patches[one.patch] || "")),
      mark(one.finding ? "red" : idle(one) ? "not-built" : "repaired", one.status), one.reason, code(one.target)]));
  const [concerned, spared] = [own.filter((one) => !idle(one)), own.filter(idle)];
  const parts = [element("p", {}, `${sayHere(distribution)}.`.replace(/^./, (first) => first.toUpperCase()))];
  if (concerned.length) parts.push(table(concerned));
  if (spared.length) {
    parts.push(element("details", {},
      element("summary", {}, `${many(spared.length, "target")} that ${spared.length === 1 ? "needs" : "need"} nothing`),
      table(spared)));
  }
  show(`${distribution} ${version} in this environment`, ...parts, element("h3", {}, "Say it again"),
    commands("mlx-patches audit --all"));
}

function describeEnvironment() {
  const { audit } = data;
  const parts = audit.broken_sets.map((one) => element("p", {}, mark("red", FATES.red[0]),
    ` Cannot work: ${one.reason}: ${one.remedy}.`));
  const active = audit.host ? [`The patches are active in processes of ${audit.host}.`]
    : audit.active ? ["The patches are active here."]
      : ["The patches are not active here. To activate them: ", code("mlx-patches enable")];
  parts.push(element("p", {}, ...active));
  if (audit.model) parts.push(element("p", {}, `Only what the model ${audit.model.model_type} needs was looked at.`));
  const rows = audit.distributions.map(({ name, version }) => {
    const concerned = audit.patches.some((one) => one.distribution === name);
    const details = () => button({ class: "details", "aria-label": `Details of ${name}` }, "Details",
      () => showHere(name, version));
    return [name, version, concerned ? sayHere(name) : "", concerned ? details() : ""];
  });
  parts.push(rows.length ? list(["installed", "version", "patches", ""], rows)
    : element("p", {}, "No MLX package is installed."));
  if (audit.findings.length) {
    parts.push(element("details", {}, element("summary", {}, many(audit.findings.length, "finding")),
      element("ul", {}, ...audit.findings.map((one) => element("li", {}, one)))));
  }
  byId("environment").append(...parts);
  byId("environment").hidden = false;
}

// -- the maps ----------------------------------------------------------------------------------

function cellButton([fate, text], name, choose) {
  return button({ class: `mark ${fate}`, "aria-label": name, title: name, tabindex: "-1" }, text, choose);
}

const place = (pack, release) => (release.version === pack.here ? { class: "here" } : {});

function map(pack) {
  const body = Object.entries(pack.families).map(([family, cells]) => familyRow(pack, family, cells));
  const top = [headRow(pack), ...(data.audit ? [environmentRow(pack)] : []), totalsRow(pack)];
  const grid = element("table", { role: "grid", "aria-label": `${pack.name}: model families by release` },
    element("thead", {}, ...top), element("tbody", {}, ...body));
  grid.addEventListener("keydown", step);
  grid.addEventListener("focusin", (event) => enter(grid, event.target));
  const size = `${many(body.length, "family", "families")}, newest release first`;
  const section = element("section", { "aria-label": pack.name },
    element("h2", {}, pack.name, element("small", {}, size)), element("div", { class: "map" }, grid));
  section.dataset.package = pack.name;
  return section;
}

function headRow(pack) {
  return element("tr", {}, element("th", { scope: "col" }, "family"), ...pack.releases.map((release) =>
    element("th", { scope: "col", title: release.versions ? versions(release) : "not measured",
      ...place(pack, release) }, release.version)));
}

function environmentRow(pack) {
  const cells = pack.releases.map((release) => {
    const cell = element("td", place(pack, release));
    if (release.version === pack.here) {
      const name = `This environment, ${pack.name} ${pack.here}: ${sayHere(pack.name)}`;
      cell.append(cellButton(signHere(pack.name), name, () => showHere(pack.name, pack.here)));
    }
    return cell;
  });
  const name = pack.here ? "this environment" : "this environment: not installed";
  return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
}

function totalsRow(pack) {
  const totals = pack.releases.map((release, column) => {
    const cells = Object.values(pack.families).map((row) => row[column]).filter(Boolean);
    const count = (...fates) => cells.filter((cell) => fates.includes(cell.fate)).length;
    const after = cells.some(measuredWith) ? count("green", "repaired") : "?";
    const total = element("td", { ...place(pack, release) }, cells.length ? `${count("green")} → ${after}` : "");
    total.classList.add("total");
    return total;
  });
  return element("tr", {}, element("th", { scope: "row" }, "right → with patches"), ...totals);
}

function familyRow(pack, family, cells) {
  const row = element("tr", {}, element("th", { scope: "row" }, family), ...cells.map((cell, column) => {
    const release = pack.releases[column];
    const made = element("td", place(pack, release));
    if (cell) {
      const [sign, meaning] = FATES[cell.fate];
      made.append(cellButton([cell.fate, sign], `${family}, ${pack.name} ${release.version}: ${meaning}`,
        () => showCell(pack, release, family, cell)));
    }
    return made;
  }));
  row.dataset.family = family;
  return row;
}

// A map is one stop of the tab key: the cell that had the focus last.
function enter(grid, cell) {
  for (const old of grid.querySelectorAll("[tabindex='0']")) old.tabIndex = -1;
  if (cell) cell.tabIndex = 0;
}

const STEPS = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  Home: [0, -Infinity], End: [0, Infinity],
};

function step(event) {
  const move = STEPS[event.key];
  if (!move || event.altKey || event.metaKey || event.target.tagName !== "BUTTON") return;
  event.preventDefault();
  const from = event.target.closest("td");
  const [up, along] = move;
  // The cells in the way, nearest first: of this row, or of this column.
  const rows = [...event.currentTarget.rows].filter((row) => !row.hidden);
  const line = up ? rows.map((row) => row.cells[from.cellIndex]) : [...from.parentElement.cells];
  const at = line.indexOf(from);
  const way = up + along < 0 ? line.slice(0, at).reverse() : line.slice(at + 1);
  const cells = way.map((cell) => cell.querySelector("button")).filter(Boolean);
  const next = Math.abs(along) === Infinity ? cells.at(-1) : cells[0];
  if (next) next.focus();
}

// -- filters -----------------------------------------------------------------------------------

function filter() {
  const [pack, part, patch] = ["package", "family", "patch"].map((id) => byId(id).value.trim());
  let [shown, total] = [0, 0];
  for (const section of document.querySelectorAll("#maps section")) {
    const { families } = data.packages.find((one) => one.name === section.dataset.package);
    let some = false;
    for (const row of section.querySelectorAll("tr[data-family]")) {
      const { family } = row.dataset;
      const has = families[family].map((cell) => !patch || (cell !== null && concerns(cell, patch)));
      const wanted = (!pack || pack === section.dataset.package)
        && family.toLowerCase().includes(part.toLowerCase()) && has.some(Boolean);
      row.hidden = !wanted;
      has.forEach((one, column) => row.cells[column + 1].classList.toggle("other", !one));
      some ||= wanted;
      shown += wanted;
      total += 1;
    }
    // An empty map stays where nothing was measured or asked for.
    section.hidden = !some && Boolean(pack || part || patch);
    enter(section, section.querySelector("tr:not([hidden]) button"));
  }
  byId("count").textContent = `${shown} of ${many(total, "family", "families")}`;
}

const concerns = (cell, patch) => cell.row.includes(patch) || Object.values(cell.needs).flat().includes(patch);

// -- start -------------------------------------------------------------------------------------

function start() {
  for (const [fate, [sign, meaning]] of Object.entries(FATES)) {
    byId("legend").append(element("li", {}, mark(fate, sign), ` ${meaning}`));
  }
  for (const pack of data.packages) {
    byId("package").append(element("option", {}, pack.name));
    byId("maps").append(map(pack));
  }
  const cells = data.packages.flatMap((pack) => Object.values(pack.families).flat()).filter(Boolean);
  for (const [id, summary] of Object.entries(data.patches)) {
    if (cells.some((cell) => concerns(cell, id))) {
      byId("patch").append(element("option", { title: summary }, id));
    }
  }
  const form = document.querySelector("form[role=search]");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  // The fields are empty only after the event.
  form.addEventListener("reset", () => setTimeout(filter));
  if (data.audit) describeEnvironment();
  filter();
}

start();
