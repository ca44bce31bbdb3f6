"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// What a family's fate in a release is shown as: a mark, so that colour is never alone.
const FATES = {
  green: ["✓", "right as released"],
  repaired: ["✚", "wrong as released, right with the patches"],
  red: ["✗", "wrong in some scenario"],
  insensitive: ["?", "the tiny model is too blunt to tell"],
  "not-built": ["–", "the lab could not build it"],
};
const LETTERS = { g: "green", r: "red", n: "not applicable", i: "insensitive", x: "not built", "-": "" };

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function mark(tag, kind, sign, properties = {}) {
  return element(tag, { className: `mark ${kind}`, textContent: sign, ...properties });
}

function table(columns, rows) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, column) =>
      element(column ? "td" : "th", column ? { className: columns[column] === "what it said" ? "said" : "" }
        : { scope: "row" }, cell))))));
}

// -- the evidence behind a cell ------------------------------------------------------------

function show(title, ...parts) {
  byId("evidence-body").replaceChildren(element("h2", { id: "evidence-title" }, title), ...parts);
  byId("evidence").showModal();
}

function showCell(pack, set, family, cell) {
  const measuredWith = cell.pairs === undefined || /[a-z]{2}/.test(cell.pairs);
  let said = FATES[cell.fate][1];
  if (cell.fate === "red") said += measuredWith ? ", with the patches too" : "; not measured with the patches";
  const parts = [
    element("p", {}, mark("span", cell.fate, FATES[cell.fate][0]), ` ${cell.fate}: ${said}.`),
    element("p", {}, "Measured with ", Object.entries(set.versions).map((one) => one.join(" ")).join(", "), "."),
  ];
  if (cell.pairs !== undefined) parts.push(scenarioTable(cell));
  if (cell.patches.length) {
    const which = cell.pairs === undefined ? "Patches that the matrix names for it in this release" : "Patches that repair it";
    parts.push(element("h3", {}, which), patchList(cell.patches));
  }
  parts.push(element("h3", {}, "Reproduce, where this release is installed"), commands(
    `mlx-patches lab --model ${family} --both`,
    ...cell.patches.map((id) => `mlx-patches probe ${id}`)));
  show(`${family} in ${pack.name} ${set.version}`, ...parts);
}

function scenarioTable(cell) {
  const rows = [];
  cell.pairs.split(" ").forEach((pair, index) => {
    if (pair[0] === "-") return;
    const name = data.scenarios[index];
    const [without, with_] = [LETTERS[pair[0]], pair[1] ? LETTERS[pair[1]] : "not measured"];
    const said = cell.said[name] || ["", ""];
    const sentence = said[0] === said[1] ? said[0] : [said[0], said[1] && `with the patches: ${said[1]}`].filter(Boolean).join("; ");
    rows.push([name, without, with_, (cell.needs[name] || []).join(", "), sentence]);
  });
  return table(["scenario", "without patches", "with them", "repaired by", "what it said"], rows);
}

function patchList(ids) {
  return element("ul", {}, ...ids.map((id) =>
    element("li", {}, element("code", {}, id), `: ${data.patches[id] || ""}`)));
}

function commands(...lines) {
  return element("pre", {}, element("code", {}, lines.join("\n")));
}

// -- this environment ----------------------------------------------------------------------

const outcomes = (pack) => data.audit.patches.filter((one) => one.distribution === pack.name);

function environmentFate(pack) {
  const own = outcomes(pack);
  const open = own.filter((one) => one.finding).length;
  if (open) return ["red", `${open} ${open === 1 ? "target" : "targets"} to repair`];
  const active = own.filter((one) => one.status === "applied" || one.status === "pending").length;
  return active ? ["repaired", `${active} targets repaired`] : ["green", "nothing to repair"];
}

function showEnvironment(pack) {
  const rows = outcomes(pack).map((one) => [one.patch, one.target, one.status, one.reason]);
  rows.sort((a, b) => (a[2] > b[2]) - (a[2] < b[2]));
  show(`${pack.name} ${pack.here} in this environment`,
    element("p", {}, `${environmentFate(pack)[1]}; the patches are ${data.audit.active ? "" : "not "}active here.`),
    table(["patch", "target", "status", "reason"], rows),
    element("h3", {}, "Say it again"), commands("mlx-patches audit --all"));
}

function describeEnvironment() {
  const { audit } = data;
  if (!audit) return;
  const installed = audit.distributions.map((one) => `${one.name} ${one.version}`).join(", ");
  const where = audit.host ? `in processes of ${audit.host}` : audit.active ? "yes" : "no";
  const count = audit.findings.length;
  byId("environment").append(
    element("p", {}, `Installed: ${installed || "no MLX package"}. Patches active: ${where}.`),
    element("p", {}, count ? `${count} finding${count === 1 ? "" : "s"}. To repair: ` : "No findings.",
      count ? element("code", {}, "mlx-patches enable") : ""));
  if (count) byId("environment").append(element("details", {}, element("summary", {}, "The findings"),
    element("ul", {}, ...audit.findings.map((one) => element("li", {}, one)))));
  byId("environment").hidden = false;
}

// -- the maps ------------------------------------------------------------------------------

function button(kind, sign, name, choose) {
  const made = mark("button", kind, sign, { type: "button", tabIndex: -1, title: name, onclick: choose });
  made.setAttribute("aria-label", name);
  return made;
}

function environmentRow(pack) {
  const cells = pack.sets.map((set) => {
    const cell = element("td");
    if (set.version === pack.here) {
      const [fate, said] = environmentFate(pack);
      cell.className = "here";
      cell.append(button(fate, FATES[fate][0],
        `This environment has ${pack.name} ${pack.here}: ${said}`, () => showEnvironment(pack)));
    }
    return cell;
  });
  const name = pack.here ? `this environment: ${pack.here}` : "this environment: not installed";
  return element("tr", { className: "environment" }, element("th", { scope: "row" }, name), ...cells);
}

function familyRow(pack, family, cells) {
  const row = element("tr", {}, element("th", { scope: "row" }, family), ...cells.map((cell, column) => {
    const set = pack.sets[column];
    const place = element("td", { className: set.version === pack.here ? "here" : "" });
    if (cell) place.append(button(cell.fate, FATES[cell.fate][0],
      `${family}, ${pack.name} ${set.version}: ${cell.fate}`, () => showCell(pack, set, family, cell)));
    return place;
  }));
  Object.assign(row.dataset, { package: pack.name, family });
  return row;
}

function map(pack) {
  const heads = pack.sets.map((set) => element("th", { scope: "col",
    title: set.versions ? Object.entries(set.versions).map((one) => one.join(" ")).join(", ") : "not measured" },
    set.version));
  const rows = Object.entries(pack.families).map(([family, cells]) => familyRow(pack, family, cells));
  if (data.audit) rows.unshift(environmentRow(pack));
  const made = element("table", { role: "grid", onkeydown: step, onfocusin: undefined },
    element("caption", {}, `${pack.name}: ${Object.keys(pack.families).length} families by release, newest first`),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "family"), ...heads)),
    element("tbody", {}, ...rows));
  made.addEventListener("focusin", (event) => enter(made, event.target));
  return element("section", { className: "map", "aria-label": `${pack.name}, a heat map` }, made);
}

// One stop of the tab key a table: the cell that had the focus last.
function enter(grid, cell) {
  for (const old of grid.querySelectorAll("button[tabindex='0']")) old.tabIndex = -1;
  if (cell) cell.tabIndex = 0;
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function step(event) {
  const move = STEPS[event.key];
  if (!move || event.target.tagName !== "BUTTON") return;
  event.preventDefault();
  const rows = [...event.currentTarget.tBodies[0].rows].filter((row) => !row.hidden);
  const from = event.target.closest("td");
  let [row, column] = [rows.indexOf(from.parentElement), from.cellIndex];
  for (;;) {
    row += move[0];
    column += move[1];
    const cell = rows[row] && rows[row].cells[column];
    if (!cell) return;
    const next = cell.querySelector("button");
    if (next) return next.focus();
  }
}

// -- filters -------------------------------------------------------------------------------

function filter() {
  const [pack, part, patch] = ["package", "family", "patch"].map((id) => byId(id).value.trim().toLowerCase());
  let [shown, total] = [0, 0];
  for (const grid of document.querySelectorAll("#maps table")) {
    let any = false;
    for (const row of grid.tBodies[0].rows) {
      if (!row.dataset.family) continue;
      const known = data.packages.find((one) => one.name === row.dataset.package);
      const cells = known.families[row.dataset.family];
      const has = (cell) => !patch || Boolean(cell && cell.patches.includes(patch));
      const wanted = (!pack || pack === row.dataset.package)
        && row.dataset.family.toLowerCase().includes(part) && cells.some(has);
      row.hidden = !wanted;
      cells.forEach((cell, column) => row.cells[column + 1].classList.toggle("elsewhere", !has(cell)));
      any = any || wanted;
      shown += wanted;
      total += 1;
    }
    grid.parentElement.hidden = !any;
    enter(grid, [...grid.querySelectorAll("tbody tr:not([hidden]) button")][0]);
  }
  byId("count").textContent = `${shown} of ${total} families`;
}

function start() {
  for (const [fate, [sign, meaning]] of Object.entries(FATES)) {
    byId("legend").append(element("li", {}, mark("span", fate, sign), ` ${fate}: ${meaning}`));
  }
  const named = new Set();
  for (const pack of data.packages) {
    if (!Object.keys(pack.families).length && !pack.here) continue;
    byId("package").append(element("option", {}, pack.name));
    byId("maps").append(element("h2", {}, pack.name), map(pack));
    for (const cells of Object.values(pack.families)) {
      for (const cell of cells) for (const id of (cell ? cell.patches : [])) named.add(id);
    }
  }
  for (const id of Object.keys(data.patches)) {
    if (named.has(id)) byId("patch").append(element("option", { title: data.patches[id] }, id));
  }
  const form = document.querySelector("form[role=search]");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  describeEnvironment();
  filter();
}

start();
