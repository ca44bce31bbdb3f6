async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const data = await unpack(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// A family's result in a release: a sign, because colour is not accessible, and its meaning.
const RESULTS = {
  green: ["✓", "right as released"],
  repaired: ["+", "repaired: wrong as released, right with the patches"],
  solo: ["1+", "repaired: as released even a single request gets wrong text, right with the patches"],
  partly: ["±", "partly repaired: the patches repair some scenarios, not all"],
  red: ["✗", "red: wrong in some scenario"],
  open: ["!", "wrong in this environment: the patches that repair it are not in effect"],
  "cannot-batch": ["∅", "cannot batch: no scenario with several rows applies"],
  insensitive: ["?", "the tiny model is not sensitive enough"],
  "not-built": ["–", "not built: the lab could not build a model of this family"],
};
const LETTERS = {
  g: ["green", "✓ green"],
  r: ["red", "✗ red"],
  i: ["insensitive", "? insensitive"],
  x: ["not-built", "– not built"],
  n: ["not-built", "not applicable"],
};

// -- making elements: text is never parsed as HTML ---------------------------------------------

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
      element("td", { class: columns[index + 1], "data-label": columns[index + 1] }, cell))));
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
  const result = resultOf(pack, release, family, cell);
  const [sign, meaning] = RESULTS[result];
  const known = measuredWith(cell) ? "" : "; not measured with the patches";
  const needed = seen(cell);
  const parts = [
    element("p", {}, mark(result, sign), ` ${meaning}${known}.`),
    element("p", {}, element("small", {}, `Measured with ${versions(release)}.`)),
    ...(cell.metal.length ? [element("p", {}, "Not measured: Metal-only code in ",
      ...cell.metal.flatMap((name, index) => [index ? ", " : "", code(name)]), ".")] : []),
    ...(cell.held ? [element("p", {}, cell.held)] : []),
    ...(cell.solo.length ? [element("p", {}, "Without ",
      ...cell.solo.flatMap((id, index) => [index ? ", " : "", code(id)]), " even a single request gets wrong text. ",
      "Scenarios cannot show this, because each compares a batch with a single request.")] : []),
    scenarioTable(cell),
  ];
  if (needed.length) parts.push(element("h3", {}, "Patches needed"), patchList(needed));
  if (cell.row.length) {
    const title = needed.length ? "Some repairs were not traced to patches. The family's matrix entry names"
      : "The needed patches were not traced. The family's matrix entry names";
    parts.push(element("h3", {}, title), patchList(cell.row));
  }
  parts.push(element("h3", {}, "Reproduce with this release installed"),
    commands(`mlx-patches lab --model ${pack.name}:${family} --both`,
      ...needed.map((id) => `mlx-patches probe ${id}`)));
  show(`${family} in ${pack.name} ${release.version}`, ...parts);
}

const measuredWith = (cell) => cell.pairs.split(" ").some((pair) => pair.length === 2);

// The patches that a cell's scenarios, or a single request, were measured to need, in the registry's order.
function seen(cell) {
  const needed = new Set([...cell.solo, ...Object.values(cell.needs).flat()]);
  return Object.keys(data.patches).filter((id) => needed.has(id));
}

function scenarioTable(cell) {
  const spared = new Set();
  // A scenario with the same results in several places is listed once.
  const found = new Map();
  cell.pairs.split(" ").forEach((pair, index) => {
    const { name, place } = data.scenarios[index];
    const [base] = name.split("@");
    if (chosenPlace() !== "*" && chosenPlace() !== place) return;
    if (pair[0] === "n") spared.add(base);
    if (pair[0] === "n" || pair === "-") return;
    const key = [base, pair, severityIn(cell, index), ...(cell.needs[name] || [])].join();
    if (found.has(key)) found.get(key).places.push(place);
    else found.set(key, { index, base, pair, places: [place] });
  });
  // Red scenarios come first.
  const red = ({ pair }) => pair.includes("r");
  const rows = [...found.values()].sort((one, other) => red(other) - red(one)).map(({ index, base, pair, places }) => {
    const { name, does } = data.scenarios[index];
    const verdicts = [...pair].map((letter) => mark(...LETTERS[letter]));
    const needs = (cell.needs[name] || []).flatMap((id) => [code(id), " "]);
    const where = places.map((place) => data.places[place]).join("; ");
    return [group(base, element("small", {}, does), element("small", {}, where)), verdicts[0],
      verdicts[1] || "not measured", severityIn(cell, index), needs.length ? group(...needs) : "",
      detailOf(cell.details[name])];
  });
  const table = element("div", { class: "wide" }, list(["scenario", "without patches", "with patches",
    "severity", "patches needed", "detail"], rows));
  return spared.size ? group(table, element("p", {},
    element("small", {}, `Not applicable: ${[...spared].join(", ")}.`))) : table;
}

function detailOf([without, with_] = [-1, -1]) {
  const [before, after] = [data.details[without], data.details[with_]];
  if (before === after || after === undefined) return before || "";
  return group(before ? `without: ${before}` : "", before ? element("br") : "", `with: ${after}`);
}

function patchList(ids) {
  return element("ul", {}, ...ids.map((id) => element("li", {}, code(id), `: ${data.patches[id] || ""}`)));
}

// The severity of a scenario of a cell; empty if it is not red.
function severityIn(cell, index) {
  const { name, severity } = data.scenarios[index];
  if (!cell.pairs.split(" ")[index].includes("r")) return "";
  return cell.crashes.includes(name) ? "crash" : severity;
}

const severities = (cell) => new Set([...(cell.solo.length ? ["wrong-text"] : []),
  ...data.scenarios.map((_, index) => severityIn(cell, index)).filter(Boolean)]);

// Commands, and a button that copies them.
function commands(...lines) {
  const text = lines.join("\n");
  const copy = button({ class: "copy" }, "Copy", async () => {
    copy.textContent = await copied(text) ? "Copied" : "Press Ctrl+C";
  });
  return element("div", { class: "commands" }, element("pre", {}, code(text)), copy);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

// -- this environment --------------------------------------------------------------------------

const IN_EFFECT = ["applied", "pending"];

// The patches of a distribution here, by state: a patch has each state that one of its targets has.
function patchesHere(distribution) {
  const found = { open: new Set(), active: new Set(), chosen: new Set() };
  for (const one of data.audit.patches.filter((each) => each.distribution === distribution)) {
    if (one.finding) found.open.add(one.patch);
    else if (IN_EFFECT.includes(one.status)) found.active.add(one.patch);
    else if (one.status === "disabled" && !one.reason.startsWith("optional")) found.chosen.add(one.patch);
  }
  return found;
}

function sayHere(distribution) {
  const { open, active, chosen } = patchesHere(distribution);
  const parts = [];
  if (open.size) parts.push(`${many(open.size, "patch", "patches")} needed and not in effect`);
  if (active.size) parts.push(`${many(active.size, "patch", "patches")} applied as needed`);
  if (chosen.size) parts.push(`${chosen.size} switched off`);
  return parts.join(", ") || "nothing to repair";
}

// The sign of this environment in the map, with the number of patches.
function signHere(distribution) {
  const { open, active } = patchesHere(distribution);
  if (open.size) return ["red", `${RESULTS.red[0]} ${open.size}`];
  return active.size ? ["repaired", `${RESULTS.repaired[0]} ${active.size}`] : ["green", RESULTS.green[0]];
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
  show(`${distribution} ${version} in this environment`, ...parts, element("h3", {}, "In a terminal"),
    commands("mlx-patches audit --all"));
}

function describeEnvironment() {
  const { audit } = data;
  byId("verdict").textContent = audit.verdict;
  byId("verdict").className = audit.exit_code ? "wrong" : "fine";
  byId("families").hidden = false;
  const parts = audit.broken_sets.map((one) => element("p", {}, mark("red", RESULTS.red[0]),
    ` Cannot work: ${one.reason}: ${one.remedy}.`));
  const active = audit.host ? [`The patches are active in ${audit.host} processes.`]
    : audit.active ? ["The patches are active here."]
      : ["The patches are not active here. To activate them:"];
  if (audit.environment) parts.push(element("p", {}, code(audit.environment)));
  parts.push(element("p", {}, ...active));
  if (!audit.host && !audit.active) parts.push(commands("mlx-patches enable"));
  if (audit.optional) parts.push(element("p", {}, `${audit.optional}.`));
  if (audit.model) parts.push(element("p", {}, `Only the patches that ${audit.model.model_type} needs were audited.`));
  // A server's patch may change only the web framework.
  const names = new Map(audit.distributions.map(({ name, version }) => [name, version]));
  for (const one of audit.patches) {
    const counts = one.finding || IN_EFFECT.includes(one.status);
    if (counts && !names.has(one.distribution)) names.set(one.distribution, "");
  }
  const rows = [...names].map(([name, version]) => {
    const concerned = audit.patches.some((one) => one.distribution === name);
    const details = () => button({ class: "details", "aria-label": `Details of ${name}` }, "Details",
      () => showHere(name, version));
    return [name, version, concerned ? sayHere(name) : "", concerned ? details() : ""];
  });
  parts.push(rows.length
    ? element("div", { class: "wide" }, list(["installed", "version", "patches", ""], rows),
      element("small", {}, "A patch counts once per package that it changes."))
    : element("p", {}, "No MLX package is installed."));
  if (audit.findings.length) {
    parts.push(element("details", {}, element("summary", {}, `${many(audit.findings.length, "finding")}, one per patch and target`),
      element("ul", {}, ...audit.findings.map((one) => element("li", {}, one)))));
  }
  byId("environment").append(...parts);
  byId("environment").hidden = false;
}

// -- the maps ----------------------------------------------------------------------------------

function cellButton([result, text], name, choose) {
  return button({ class: `mark ${result}`, "aria-label": name, title: name, tabindex: "-1" }, text, choose);
}

// A family's result on a device and dtype. Scenarios cannot show that a single request gets wrong text.
function shownResult(cell, place = "*") {
  const result = place === "*" ? cell.result : cell.results[place];
  return cell.solo.length && ["green", "repaired"].includes(result) ? "solo" : result;
}

// The result on the chosen device and dtype; for this environment's release, by the patches in effect.
function resultOf(pack, release, family, cell) {
  const result = shownResult(cell, chosenPlace());
  if (release.version !== pack.here || !["repaired", "solo"].includes(result)) return result;
  if (wrongSoloHere(pack.name, cell)) return "open";
  const verdict = (data.audit.verdicts || []).find((one) => one.family === family && one.distribution === pack.name);
  const fine = verdict ? verdict.repaired_here || verdict.verdict === "right" : data.audit.active;
  return fine ? result : "open";
}

// Whether a patch that a single request needs is not in effect here.
function wrongSoloHere(distribution, cell) {
  const { active } = patchesHere(distribution);
  return cell.solo.some((id) => !active.has(id));
}

const chosenPlace = () => byId("place").value;

const place = (pack, release) => (release.version === pack.here ? { class: "here" } : {});

function map(pack) {
  const body = Object.entries(pack.families).map(([family, cells]) => familyRow(pack, family, cells));
  const top = [headRow(pack), ...(data.audit ? [environmentRow(pack)] : []), totalsRow(pack)];
  const grid = element("table", { role: "grid", "aria-label": `${pack.name}: model families by release` },
    element("thead", {}, ...top), element("tbody", {}, ...body));
  grid.addEventListener("keydown", step);
  grid.addEventListener("focusin", (event) => enter(grid, event.target));
  const first = pack.here ? "this environment's release first" : "newest release first";
  const size = `${many(body.length, "family", "families")}, ${first}`;
  const section = element("section", { "aria-label": pack.name },
    element("h2", {}, pack.name, element("small", {}, size)), element("div", { class: "map" }, grid));
  section.dataset.package = pack.name;
  return section;
}

function headRow(pack) {
  return element("tr", {}, element("th", { scope: "col" }, "family"), ...pack.releases.map((release) =>
    element("th", { scope: "col", title: release.versions ? versions(release) : "not measured",
      ...place(pack, release) }, release.version,
    ...(release.version === pack.here ? [element("small", {}, " here")] : []))));
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
  const name = pack.here ? "patches to apply here" : "this environment: not installed";
  return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
}

function totalsRow(pack) {
  const totals = pack.releases.map((release, column) => {
    const cells = Object.values(pack.families).map((row) => row[column]).filter(Boolean);
    const count = (...results) => cells.filter((cell) => results.includes(shownResult(cell))).length;
    const after = cells.some(measuredWith) ? count("green", "repaired", "solo") : "?";
    const total = element("td", { ...place(pack, release) }, cells.length ? `${count("green")} → ${after}` : "");
    total.classList.add("total");
    return total;
  });
  return element("tr", {}, element("th", { scope: "row" }, "families right → with patches"), ...totals);
}

function familyRow(pack, family, cells) {
  const row = element("tr", {}, element("th", { scope: "row" }, family), ...cells.map((cell, column) => {
    const release = pack.releases[column];
    const made = element("td", place(pack, release));
    if (cell) {
      const made_ = cellButton(["", ""], "", () => showCell(pack, release, family, cell));
      paint(made_, pack, release, family, cell);
      made.append(made_);
    }
    return made;
  }));
  row.dataset.family = family;
  return row;
}

// Set a cell's colour, sign and name; hide it if the family was not measured on the chosen device.
function paint(made, pack, release, family, cell) {
  const result = resultOf(pack, release, family, cell);
  made.hidden = !result;
  if (!result) return;
  const [sign, meaning] = RESULTS[result];
  const name = `${family}, ${pack.name} ${release.version}: ${meaning}`;
  made.className = `mark ${result}`;
  made.textContent = sign;
  made.setAttribute("aria-label", name);
  made.title = name;
}

// The tab key stops once in a map: at the cell that had the focus last.
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
  // The cells in that direction, nearest first, in this row or column.
  const rows = [...event.currentTarget.rows].filter((row) => !row.hidden);
  const line = up ? rows.map((row) => row.cells[from.cellIndex]) : [...from.parentElement.cells];
  const at = line.indexOf(from);
  const way = up + along < 0 ? line.slice(0, at).reverse() : line.slice(at + 1);
  const cells = way.map((cell) => cell.querySelector("button:not([hidden])")).filter(Boolean);
  const next = Math.abs(along) === Infinity ? cells.at(-1) : cells[0];
  if (next) next.focus();
}

// -- filters -----------------------------------------------------------------------------------

function filter() {
  const [pack, part, patch, severity, where] = ["package", "family", "patch", "severity", "place"]
    .map((id) => byId(id).value.trim());
  const wants = (cell) => cell !== null && (!patch || concerns(cell, patch))
    && (!severity || severities(cell).has(severity)) && (where === "*" || where in cell.results);
  const all = !patch && !severity && where === "*";
  let [shown, total] = [0, 0];
  for (const section of document.querySelectorAll("#maps section")) {
    const shownPack = data.packages.find((one) => one.name === section.dataset.package);
    const { families } = shownPack;
    let some = false;
    for (const row of section.querySelectorAll("tr[data-family]")) {
      const { family } = row.dataset;
      const has = families[family].map((cell) => all || wants(cell));
      families[family].forEach((cell, column) => {
        const made = row.cells[column + 1].querySelector("button");
        if (made) paint(made, shownPack, shownPack.releases[column], family, cell);
      });
      const wanted = (!pack || pack === section.dataset.package)
        && family.toLowerCase().includes(part.toLowerCase()) && has.some(Boolean);
      row.hidden = !wanted;
      has.forEach((one, column) => row.cells[column + 1].classList.toggle("other", !one));
      some ||= wanted;
      shown += wanted;
      total += 1;
    }
    // Without a filter an empty map stays visible.
    section.hidden = !some && Boolean(pack || part || !all);
    enter(section, section.querySelector("tr:not([hidden]) button:not([hidden])"));
  }
  byId("count").textContent = `${shown} of ${many(total, "family", "families")}`;
}

const concerns = (cell, patch) => [...cell.solo, ...cell.row, ...Object.values(cell.needs).flat()].includes(patch);

// -- start -------------------------------------------------------------------------------------

function start() {
  for (const [result, [sign, meaning]] of Object.entries(RESULTS)) {
    if (result === "open" && !data.audit) continue;
    byId("legend").append(element("li", {}, mark(result, sign), ` ${meaning}`));
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
  // The fields are cleared only after the event.
  form.addEventListener("reset", () => setTimeout(filter));
  for (const word of ["wrong-text", "crash", "memory", "security", "feature"]) {
    if (cells.some((cell) => severities(cell).has(word))) byId("severity").append(element("option", {}, word));
  }
  for (const [name, words] of Object.entries(data.places)) {
    byId("place").append(element("option", { value: name }, words));
  }
  byId("place").parentElement.hidden = Object.keys(data.places).length < 2;
  byId("written").textContent = `Written ${data.written} by mlx_patches ${data.mlx_patches}.`;
  if (data.audit) describeEnvironment();
  if (data.audit && data.audit.model) askForModel();
  filter();
  if (data.audit && data.audit.model) openModel();
}

// The page of a model's audit opens with that model, the worst verdict first.
const modelFamilies = () => [...(data.audit.verdicts || [])]
  .sort((one, other) => (other.wrong_here || 0) - (one.wrong_here || 0))
  .map((one) => [one.distribution, one.family]);

function askForModel() {
  const names = new Set(modelFamilies().map(([, family]) => family));
  if (names.size === 1) byId("family").value = [...names][0];
}

function openModel() {
  for (const [name, family] of modelFamilies()) {
    const pack = data.packages.find((one) => one.name === name);
    const column = pack.releases.findIndex((release) => release.version === pack.here);
    const cell = (pack.families[family] || [])[column];
    if (cell) {
      showCell(pack, pack.releases[column], family, cell);
      return;
    }
  }
}

start();
