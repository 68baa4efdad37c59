"use strict";
// Everything that comes from runs is text: it is set by textContent, never as markup.
const $ = (id) => document.getElementById(id);
const state = { runs: [], now: 0, sort: ["started", -1], chosen: [], details: new Map() };

function make(tag, text, attributes = {}) {
  const found = document.createElement(tag);
  if (text !== null && text !== undefined) found.textContent = text;
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  return found;
}

const of = (values, name, other) => (Object.hasOwn(values, name) ? values[name] : other);

// ---- how values are shown ---------------------------------------------------------------------

const number = (value) => (value === null ? "–" : value.toFixed(4));
function bytes(value) {
  if (value === null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; unit += 1; }
  return `${value.toFixed(value < 10 && unit ? 1 : 0)} ${units[unit]}`;
}
function age(then) {
  if (then === null) return "–";
  const seconds = Math.max(0, state.now - then);
  if (seconds < 100) return `${Math.round(seconds)} s ago`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}
function done(run) {  // the part of a running run that is done
  const at = run.progress;
  if (!at || !run.epochs) return null;
  const part = at.phase === "train" && at.steps ? at.step / at.steps : at.phase === "train" ? 0 : 1;
  return Math.min(1, (at.epoch + part) / run.epochs);
}
const speed = (run) => (run.progress ? run.progress.samples_per_second : null);
const memory = (run) => {  // of all ranks of its first host
  if (!run.progress) return null;
  const known = run.progress.ranks.map((one) => one.memory).filter((one) => one !== null);
  return known.length ? known.reduce((a, b) => a + b) : run.progress.memory;
};

// Head, what it is sorted by, how it is shown.
const COLUMNS = [
  ["run", "name", (run) => run.name, "name"],
  ["state", "state", null],
  ["epoch", "epoch", null, "number"],
  ["model", "model", (run) => run.model],
  ["data", "data", (run) => run.data],
  ["samples/s", speed, (run) => (speed(run) === null ? "–" : Math.round(speed(run)).toLocaleString("en")), "number"],
  ["memory", memory, (run) => bytes(memory(run)), "number"],
  ["metric", "metric", (run) => run.metric],
  ["best valid", "best_valid", (run) => number(run.best_valid), "number"],
  ["test", "test", (run) => number(run.test), "number"],
  ["started", "started", (run) => age(run.started)],
];
const valueOf = (run, by) => (typeof by === "function" ? by(run) : run[by]);

// ---- the table --------------------------------------------------------------------------------

function heads() {
  const row = document.querySelector("#runs thead tr");
  row.append(make("th", "", { "aria-label": "choose" }));
  for (const [text, by, , kind] of COLUMNS) {
    const head = make("th", null, kind === "number" ? { class: "number" } : {});
    const button = make("button", text);
    button.onclick = () => {
      const same = state.sort[0] === by;
      state.sort = [by, same ? -state.sort[1] : 1];
      table();
    };
    head.append(button);
    row.append(head);
  }
}

function shown() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (run) => `${run.name} ${run.model} ${run.data} ${run.state}`.toLowerCase();
  const found = state.runs.filter((run) => words.every((word) => text(run).includes(word)));
  const [by, way] = state.sort;
  return found.sort((one, other) => {
    const [a, b] = [valueOf(one, by), valueOf(other, by)];
    if (a === null || b === null) return (a === null) - (b === null);  // what is not known: last
    const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return way * order || one.name.localeCompare(other.name);
  });
}

function table() {
  const runs = shown();
  document.querySelectorAll("#runs thead th").forEach((head, place) => {
    const sorted = place && COLUMNS[place - 1][1] === state.sort[0];
    if (sorted) head.setAttribute("aria-sort", state.sort[1] > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  const kept = document.activeElement ? document.activeElement.dataset.key : null;
  document.querySelector("#runs tbody").replaceChildren(...runs.map(line));
  if (kept) document.querySelector(`input[data-key="${kept}"]`)?.focus();
  const running = state.runs.filter((run) => run.state === "running").length;
  $("count").textContent = `${runs.length} of ${state.runs.length} runs, ${running} running`;
}

function line(run) {
  const row = make("tr", null, { "data-run": run.key });
  const place = state.chosen.indexOf(run.key);
  if (place >= 0) row.className = "chosen";
  const box = make("input", null, { type: "checkbox", "data-key": run.key, "aria-label": `choose ${run.name}` });
  box.checked = place >= 0;
  box.onchange = () => choose(run.key, box.checked);
  const first = make("td");
  first.append(box);
  row.append(first);
  for (const [head, , show, kind] of COLUMNS) {
    const cell = make("td", show ? show(run) : null, kind ? { class: kind } : {});
    if (head === "state") stateOf(run, cell);
    if (head === "epoch") epochOf(run, cell);
    row.append(cell);
  }
  return row;
}

function stateOf(run, cell) {
  const kind = { running: "good", failed: "bad" }[run.state] || "soft";
  cell.append(make("span", run.state, { class: kind, title: run.reason }));
  if (run.state === "running" && state.mayStop) {
    const button = make("button", run.asked ? "really stop?" : "stop");
    button.className = "stop";
    button.onclick = () => {
      if (run.asked) stop(run);
      run.asked = !run.asked;
      table();
    };
    cell.append(" ", button);
  }
}

function epochOf(run, cell) {
  const part = done(run);
  cell.append(run.epochs === null ? `${run.epoch}` : `${run.epoch} / ${run.epochs}`);
  if (part !== null) cell.append(make("progress", null, { value: part, max: 1 }));
}

async function stop(run) {
  const how = { method: "POST", headers: { "content-type": "application/json" } };
  try {
    const answer = await fetch("stop", { ...how, body: JSON.stringify({ run: run.key }) });
    const reply = await answer.json();
    $("said").textContent = answer.ok ? `${run.name} was asked to save and stop` : reply.error;
  } catch (error) {
    $("said").textContent = `not stopped: ${error.message}`;
  }
}

// ---- chosen runs ------------------------------------------------------------------------------

function choose(key, on) {
  state.chosen = state.chosen.filter((one) => one !== key);
  if (on) state.chosen = [...state.chosen, key].slice(-8);
  history.replaceState(null, "", `#${state.chosen.join(",")}`);
  table();
  look();
}

async function look() {
  $("chosen").hidden = $("clear").hidden = state.chosen.length === 0;
  $("report").hidden = state.chosen.length === 0 || !state.hasReport;
  if (state.chosen.length === 0) return;
  const query = state.chosen.map((key) => `run=${key}`).join("&");
  $("report").href = `report?${query}`;
  $("report").textContent = state.chosen.length > 1 ? `report on these ${state.chosen.length}` : "report";
  const answer = await fetch(`details?${query}`);
  if (!answer.ok) {  // one of them is gone
    const known = new Set(state.runs.map((run) => run.key));
    state.chosen = state.chosen.filter((key) => known.has(key));
    return;
  }
  const found = (await answer.json()).runs;
  if (found.map((one) => one.key).join() !== state.chosen.join()) return;  // chosen anew meanwhile
  $("chosen-title").textContent = found.length > 1 ? `${found.length} runs compared` : found[0].name;
  legend(found);
  charts(found);
  live();
  configs(found);
}

const colour = (place) => `var(--c${place % 8})`;
function named(run, place) {
  const whole = make("span", null, { class: "one" });
  const swatch = make("span", null, { class: "swatch" });
  swatch.style.background = colour(place);
  whole.append(swatch, run.name);
  return whole;
}
function legend(found) {
  $("legend").replaceChildren(...found.map(named));
}

function charts(found) {
  const names = [...new Set(found.flatMap((run) => Object.keys(run.curves)))].filter((one) => one !== "loss");
  const select = $("metric");
  if (names.join() !== [...select.options].map((one) => one.value).join()) {
    const decides = state.runs.find((run) => run.key === found[0].key)?.metric;
    const wanted = names.includes(select.value) ? select.value : decides;
    select.replaceChildren(...names.map((name) => make("option", name, { value: name })));
    if (names.includes(wanted)) select.value = wanted;
  }
  const metric = select.value;
  $("charts").replaceChildren(
    chart(found, "loss", "training loss by epoch"), ...(metric ? [chart(found, metric, `${metric} on the valid split by epoch`)] : []));
}

function drawn(tag, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}
function ticks(low, high) {  // at most five round numbers
  const rough = (high - low) / 4 || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
  return found;
}

function chart(found, name, title) {
  const whole = make("div");
  whole.append(make("h2", title));
  const lines = found.map((run) => of(run.curves, name, []));
  const all = lines.flat();
  if (all.length === 0) {
    whole.append(make("p", "nothing yet", { class: "soft" }));
    return whole;
  }
  const [left, top, width, height] = [56, 8, 500, 200];
  let [lowX, highX, lowY, highY] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of all) {
    lowX = Math.min(lowX, x); highX = Math.max(highX, x);
    lowY = Math.min(lowY, y); highY = Math.max(highY, y);
  }
  const x = (one) => left + (highX > lowX ? (one - lowX) / (highX - lowX) : 0.5) * width;
  const y = (one) => top + height - (highY > lowY ? (one - lowY) / (highY - lowY) : 0.5) * height;
  const picture = drawn("svg", { viewBox: `0 0 ${left + width + 12} ${top + height + 24}`, role: "img", "aria-label": title });
  for (const at of ticks(lowY, highY)) {
    picture.append(drawn("line", { x1: left, x2: left + width, y1: y(at), y2: y(at), stroke: "var(--line)" }));
    picture.append(drawn("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, String(Number(at.toPrecision(6)))));
  }
  for (const at of ticks(lowX, highX).filter(Number.isInteger))
    picture.append(drawn("text", { x: x(at), y: top + height + 18, "text-anchor": "middle" }, String(at)));
  lines.forEach((points, place) => {
    const path = points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    const look = { points: path, fill: "none", stroke: colour(place), "stroke-width": 2, "stroke-linejoin": "round" };
    if (points.length > 1) picture.append(drawn("polyline", look));
    const last = points.at(-1);
    if (last) picture.append(drawn("circle", { cx: x(last[0]), cy: y(last[1]), r: 3, fill: colour(place) }));
  });
  whole.append(picture);
  return whole;
}

function rows(heads, lines, id) {
  const frame = make("div", null, { class: "wide" });
  const whole = make("table", null, { id });
  const head = make("tr");
  head.append(...heads.map((one) => (typeof one === "string" ? make("th", one) : one)));
  const body = make("tbody");
  for (const cells of lines) {
    const row = make("tr");
    row.append(...cells.map((one) => make("td", one)));
    body.append(row);
  }
  const top = make("thead");
  top.append(head);
  whole.append(top, body);
  frame.append(whole);
  return frame;
}

function live() {  // the processes of chosen runs that train now
  const chosen = state.chosen.map((key) => state.runs.find((run) => run.key === key));
  const parts = [];
  for (const run of chosen) {
    if (!run || !run.progress) continue;
    const ranks = run.progress.ranks.map((one) =>
      [`rank ${one.rank}`, `${one.host} (process ${one.pid})`, age(one.seen), bytes(one.memory)]);
    const servers = run.progress.servers.map((one) =>
      [`server ${one.server}`, one.address, one.seen === null ? "not yet" : age(one.seen), "–"]);
    const gpu = run.progress.gpu_memory === null ? "" : `, ${bytes(run.progress.gpu_memory)} of the GPU (rank 0)`;
    const part = make("section");
    part.append(make("h2", `Processes of ${run.name}`));
    const doing = run.progress.phase === "train" ? "training" : `evaluating (${run.progress.phase})`;
    const all = run.progress.steps === null ? "" : ` of ${run.progress.steps}`;
    const at = `${doing}, epoch ${run.progress.epoch}, step ${run.progress.step}${all}`;
    part.append(make("p", `${at}, as of ${age(run.progress.time)}${gpu}`, { class: "soft" }));
    part.append(rows(["process", "where", "last seen", "memory"], [...ranks, ...servers], "processes"));
    parts.push(part);
  }
  $("live").replaceChildren(...parts);
}

function configs(found) {
  const keys = [...new Set(found.flatMap((run) => Object.keys(run.config)))].sort();
  const value = (run, key) => of(run.config, key, "–");
  const differs = keys.filter((key) => new Set(found.map((run) => value(run, key))).size > 1);
  const part = make("section");
  if (found.length > 1) {
    part.append(make("h2", "Where the configs differ"));
    const heads = found.map((run, place) => { const one = make("th"); one.append(named(run, place)); return one; });
    const lines = differs.map((key) => [key, ...found.map((run) => value(run, key))]);
    part.append(lines.length ? rows(["key", ...heads], lines, "differences") : make("p", "nowhere", { class: "soft" }));
  } else {
    const open = document.querySelector("#configs details")?.open;
    const all = make("details");
    all.open = Boolean(open);
    all.append(make("summary", "config"), rows(["key", "value"], keys.map((key) => [key, value(found[0], key)]), "config"));
    part.append(all);
  }
  $("configs").replaceChildren(part);
}

// ---- live -------------------------------------------------------------------------------------

async function refresh() {
  const asked = new Map(state.runs.map((run) => [run.key, run.asked]));
  try {
    const answer = await fetch("runs");
    const reply = await answer.json();
    if (!answer.ok) throw new Error(reply.error);
    const troubled = state.troubled;
    Object.assign(state, { runs: reply.runs, now: reply.now, mayStop: reply.may_stop, hasReport: reply.has_report, troubled: false });
    for (const run of state.runs) run.asked = asked.get(run.key) || false;
    if (reply.more) $("said").textContent = `the first ${reply.runs.length} runs; name a folder with fewer`;
    else if (reply.runs.length === 0) $("said").textContent = "no run yet: `shoal train …` begins one";
    else if (troubled || $("said").textContent === "reading…" || $("said").textContent.startsWith("no run yet")) $("said").textContent = "";
    table();
    await look();
  } catch (error) {
    state.troubled = true;
    $("said").textContent = `the board does not answer (${error.message}); what is below may be old`;
  }
}
async function keepOn() {
  const begun = performance.now();
  if (!document.hidden) await refresh();
  setTimeout(keepOn, Math.max(2000, 10 * (performance.now() - begun)));  // many runs: less often
}

state.chosen = location.hash.slice(1).split(",").filter((key) => /^[0-9a-f]{16}$/.test(key)).slice(-8);
heads();
$("filter").oninput = table;
$("metric").onchange = look;
$("clear").onclick = () => { state.chosen = []; choose("", false); };
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
keepOn();
