// Draws the page from the data element. Times are cycles; what is shown is ns, us or ms of modelled time.
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const R = D.report;
const $ = (id) => document.getElementById(id);

// ---- numbers and colours ----------------------------------------------------------------------------------------
function bytesOf(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; ++i) out[i] = raw.charCodeAt(i);
  return out.buffer;
}
const F64 = (t) => new Float64Array(bytesOf(t)), I32 = (t) => new Int32Array(bytesOf(t)), I16 = (t) => new Int16Array(bytesOf(t));
const S = { core: I16(D.spans.core), track: I16(D.spans.track), begin: F64(D.spans.begin), end: F64(D.spans.end),
            what: I32(D.spans.what), kind: I16(D.spans.kind) };
const FL = { fromCore: I16(D.flows.from_core), fromTrack: I16(D.flows.from_track), sent: F64(D.flows.sent),
             toCore: I16(D.flows.to_core), toTrack: I16(D.flows.to_track), seen: F64(D.flows.seen) };
const PALETTE = ["#4878a8", "#d98a3d", "#6a9a5b", "#b8534b", "#8a6bb0", "#4aa3a0", "#a8763e", "#c46f9e", "#7a8793", "#96a03c"];
const colour = (i) => PALETTE[i % PALETTE.length];
const PARTS = {};
const partColour = (name) => PARTS[name] || (PARTS[name] = name === "wait" ? "#c3ccd6" : name === "idle" ? "#b3bcc6" : colour(Object.keys(PARTS).length));
for (const name of ["DDR read", "DDR write", "PT", "SFU", "LX", "ring", "launch", "DDR"]) partColour(name);
function scaled(value, units, step) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(value) >= step) { value /= step; ++i; }
  const digits = Math.abs(value) >= 100 || value === Math.round(value) ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toFixed(digits) + " " + units[i];
}
const bytes = (n) => scaled(n, ["B", "KiB", "MiB", "GiB", "TiB"], 1024);
const time = (ns) => scaled(ns, ["ns", "us", "ms", "s"], 1000);
const rate = (x, unit) => scaled(x, ["", "k", "M", "G", "T"].map((p) => p + unit), 1000);
const energy = (pj) => scaled(pj, ["pJ", "nJ", "uJ", "mJ", "J"], 1000);
const percent = (x) => (100 * x).toFixed(x < 0.1 ? 1 : 0) + " %";
const ns = (cycles) => cycles * 1e9 / D.hz;
const escape = (t) => String(t).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);

// ---- canvases ---------------------------------------------------------------------------------------------------
function open(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || canvas.parentElement.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
  g.textBaseline = "middle";
  return { g, width, height };
}
function ticks(from, to, count) {
  const raw = (to - from) / count, power = Math.pow(10, Math.floor(Math.log10(raw || 1)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) out.push(t);
  return out;
}
function tip(event, text) {
  const box = $("tip");
  box.style.display = text ? "block" : "none";
  if (!text) return;
  box.textContent = text;
  const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  box.style.left = left + "px";
  box.style.top = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8) + "px";
}

// ---- timeline ---------------------------------------------------------------------------------------------------
const LEFT = 118, ROW = 15;
const last = Math.max(1, ...D.launches.map((l) => l.end));
const view = { from: 0, to: last, cores: "first", picked: -1 };
const allCores = [...new Set(S.core)].sort((a, b) => a - b);
let rows = [];  // {label, core, track, lane, spans, head}

function buildRows() {
  const wanted = view.cores === "all" ? allCores
    : view.cores === "first" ? allCores.filter((c) => c < 4)
    : allCores.filter((c) => c < 0 || c === Number(view.cores));
  const lists = new Map();
  for (let i = 0; i < S.core.length; ++i) {
    const key = S.core[i] * 256 + S.track[i];
    if (!lists.has(key)) lists.set(key, []);
    lists.get(key).push(i);
  }
  rows = [{ label: "launches", head: true, launches: true }];
  for (const core of wanted) {
    rows.push({ label: core < 0 ? "chip" : "core " + core, head: true });
    for (let track = 0; track < D.tracks.length; ++track) {
      const list = lists.get(core * 256 + track);
      if (!list) continue;
      list.sort((a, b) => S.begin[a] - S.begin[b]);
      const lanes = [];
      for (const i of list) {  // spans that overlap go below one another
        let lane = lanes.findIndex((l) => l.end <= S.begin[i]);
        if (lane < 0 && lanes.length < 8) { lanes.push({ end: 0, spans: [] }); lane = lanes.length - 1; }
        if (lane < 0) lane = 7;
        lanes[lane].spans.push(i);
        lanes[lane].end = S.end[i];
      }
      lanes.forEach((l, n) => rows.push({ label: n ? "" : D.tracks[track], core, track, spans: l.spans }));
    }
  }
}
const xOf = (t, width) => LEFT + (t - view.from) / (view.to - view.from) * (width - LEFT);
const tOf = (x, width) => view.from + (x - LEFT) / (width - LEFT) * (view.to - view.from);
function firstEnding(list, t) {  // first span of the list that ends after t
  let a = 0, b = list.length;
  while (a < b) { const m = (a + b) >> 1; S.end[list[m]] < t ? a = m + 1 : b = m; }
  return a;
}
function label(g, text, x, y, w, fill) {
  if (w < 26) return;
  let t = text;
  if (g.measureText(t).width > w - 6) {
    t = text.slice(0, Math.max(1, Math.floor((w - 12) / 6.2))) + "\u2026";
  }
  g.fillStyle = fill;
  g.fillText(t, x + 3, y);
}
function drawTime() {
  const c = open($("time"), rows.length * ROW + 4), g = c.g, w = c.width;
  g.fillStyle = "#fff";
  g.fillRect(0, 0, w, c.height);
  rows.forEach((row, n) => {
    const y = n * ROW + 2;
    if (row.head) {
      g.fillStyle = "#eef2f6";
      g.fillRect(0, y, w, ROW);
    }
    g.fillStyle = row.head ? "#1d2733" : "#52606f";
    g.font = (row.head ? "600 " : "") + "11px system-ui, 'DejaVu Sans', sans-serif";
    g.fillText(row.label, row.head ? 6 : 16, y + ROW / 2);
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    if (row.launches) drawLaunches(g, w, y);
    if (row.spans) drawRow(g, w, y, row);
  });
  drawArrows(g, w);
  g.strokeStyle = "#d9e0e8";
  g.beginPath();
  g.moveTo(LEFT - 0.5, 0);
  g.lineTo(LEFT - 0.5, c.height);
  g.stroke();
  drawAxis();
}
function drawLaunches(g, w, y) {
  D.launches.forEach((l, n) => {
    const a = Math.max(LEFT, xOf(l.begin, w)), b = Math.min(w, xOf(l.end, w));
    if (b <= a) return;
    g.fillStyle = n % 2 ? "#3f5870" : "#2c4257";
    g.fillRect(a, y + 1, Math.max(b - a - 1, 1), ROW - 2);
    label(g, l.name, a, y + ROW / 2, b - a, "#fff");
  });
}
function drawRow(g, w, y, row) {
  let painted = -1;
  for (let k = firstEnding(row.spans, view.from); k < row.spans.length; ++k) {
    const i = row.spans[k];
    if (S.begin[i] > view.to) break;
    const a = Math.max(LEFT, xOf(S.begin[i], w)), b = Math.min(w, xOf(S.end[i], w));
    if (b - a < 0.4 && b < painted + 0.4) continue;  // below a pixel: already painted
    painted = b;
    const wait = S.kind[i] === 1;
    g.fillStyle = wait ? "#e3e8ee" : colour(S.what[i]);
    g.fillRect(a, y + 1.5, Math.max(b - a - (b - a > 3 ? 0.6 : 0), 0.6), ROW - 3);
    if (i === view.picked) {
      g.strokeStyle = "#111";
      g.lineWidth = 1.6;
      g.strokeRect(a, y + 1, b - a, ROW - 2);
      g.lineWidth = 1;
    }
    label(g, D.names[S.what[i]], a, y + ROW / 2, b - a, wait ? "#8592a0" : "#fff");
  }
}
function rowOf(core, track) { return rows.findIndex((r) => r.core === core && r.track === track); }
function drawArrows(g, w) {
  const p = view.picked;
  if (p < 0) return;
  // A credit leaves the last slice begun by then (a load's leaves when its data has arrived) and wakes the next one.
  let next = Infinity, before = -Infinity;
  for (let i = 0; i < S.core.length; ++i) {
    if (S.core[i] !== S.core[p] || S.track[i] !== S.track[p] || S.kind[i] === 1) continue;
    if (S.begin[i] > S.begin[p]) next = Math.min(next, S.begin[i]);
    if (S.begin[i] < S.begin[p]) before = Math.max(before, S.begin[i]);
  }
  const leaves = (i) => FL.fromCore[i] === S.core[p] && FL.fromTrack[i] === S.track[p] && FL.sent[i] >= S.begin[p] && FL.sent[i] < next;
  const wakes = (i) => FL.toCore[i] === S.core[p] && FL.toTrack[i] === S.track[p] && FL.seen[i] > before &&
    FL.seen[i] <= (S.kind[p] === 1 ? S.end[p] : S.begin[p]);
  g.lineWidth = 1.3;
  let drawn = 0;
  for (let i = 0; i < FL.sent.length && drawn < 300; ++i) {
    const out = leaves(i), into = wakes(i);
    if (!out && !into) continue;
    const from = rowOf(FL.fromCore[i], FL.fromTrack[i]), to = rowOf(FL.toCore[i], FL.toTrack[i]);
    if (from < 0 || to < 0) continue;
    ++drawn;
    const x1 = xOf(FL.sent[i], w), x2 = xOf(FL.seen[i], w), y1 = from * ROW + 2 + ROW / 2, y2 = to * ROW + 2 + ROW / 2;
    g.strokeStyle = g.fillStyle = out ? "#b32b2b" : "#1f4f9c";
    g.beginPath();
    g.moveTo(x1, y1);
    g.bezierCurveTo(x1 + 18, y1, x2 - 18, y2, x2, y2);
    g.stroke();
    g.beginPath();
    g.moveTo(x2, y2);
    g.lineTo(x2 - 6, y2 - 3.2);
    g.lineTo(x2 - 6, y2 + 3.2);
    g.fill();
  }
  g.lineWidth = 1;
}
function drawAxis() {
  const c = open($("axis"), 26), g = c.g;
  g.fillStyle = "#52606f";
  g.strokeStyle = "#c5ced8";
  g.textAlign = "center";
  for (const t of ticks(ns(view.from), ns(view.to), Math.max(3, Math.floor((c.width - LEFT) / 120)))) {
    const x = xOf(t * D.hz / 1e9, c.width);
    g.beginPath();
    g.moveTo(x, 20);
    g.lineTo(x, 26);
    g.stroke();
    g.fillText(time(t), Math.min(Math.max(x, LEFT + 12), c.width - 24), 10);
  }
  g.textAlign = "left";
}
function spanAt(event) {
  const box = $("time").getBoundingClientRect(), x = event.clientX - box.left, row = rows[Math.floor((event.clientY - box.top - 2) / ROW)];
  if (!row || x < LEFT) return null;
  const t = tOf(x, box.width), slack = 2 * (view.to - view.from) / (box.width - LEFT);
  if (row.launches) return { launch: D.launches.find((l) => l.begin <= t && t <= l.end) };
  if (!row.spans) return null;
  let found = -1;
  for (let k = firstEnding(row.spans, t - slack); k < row.spans.length; ++k) {
    const i = row.spans[k];
    if (S.begin[i] > t + slack) break;
    found = i;
    if (S.begin[i] <= t && t <= S.end[i]) break;
  }
  return found < 0 ? null : { span: found };
}
function spanText(i) {
  const kind = ["busy", "wait", "transfer"][S.kind[i]], d = S.end[i] - S.begin[i];
  const where = (S.core[i] < 0 ? "chip" : "core " + S.core[i]) + ", " + D.tracks[S.track[i]];
  return `${D.names[S.what[i]]} (${kind})\n${where}\n${time(ns(d))} = ${d.toFixed(0)} cycles, from ${time(ns(S.begin[i]))}`;
}
function zoomable(canvas) {
  let held = null;
  canvas.addEventListener("wheel", (e) => {
    if (e.shiftKey) return;
    e.preventDefault();
    const box = canvas.getBoundingClientRect(), t = tOf(Math.max(e.clientX - box.left, LEFT), box.width);
    const f = Math.exp(e.deltaY * 0.0016), span = Math.min(Math.max((view.to - view.from) * f, 8), last);
    const k = (t - view.from) / (view.to - view.from);
    setView(t - k * span, span);
  }, { passive: false });
  canvas.addEventListener("mousedown", (e) => { held = { x: e.clientX, from: view.from, moved: false }; });
  window.addEventListener("mouseup", () => { held = null; });
  window.addEventListener("mousemove", (e) => {
    if (!held) return;
    held.moved = held.moved || Math.abs(e.clientX - held.x) > 3;
    const span = view.to - view.from, width = canvas.clientWidth - LEFT;
    setView(held.from - (e.clientX - held.x) / width * span, span);
  });
  canvas.addEventListener("dblclick", () => setView(0, last));
}
function setView(from, span) {
  view.from = Math.min(Math.max(from, 0), last - span);
  view.to = view.from + span;
  requestAnimationFrame(() => { drawTime(); drawLx(); });
}

// ---- LX ---------------------------------------------------------------------------------------------------------
function drawLx() {
  const c = open($("lx"), 300), g = c.g, uses = D.lx[$("lxcore").value] || [], top = 8, base = 276;
  const peak = Math.max(1024, ...uses.map((u) => u[0] + u[1]));
  const y = (a) => base - a / peak * (base - top);
  g.fillStyle = "#fafbfc";
  g.fillRect(LEFT, top, c.width - LEFT, base - top);
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, c.width - LEFT, base + 1);
  g.clip();
  const names = [...new Set(uses.map((u) => u[5]))];
  for (const u of uses) {
    const a = xOf(u[2], c.width), b = xOf(u[3], c.width), h = Math.max(y(u[0]) - y(u[0] + u[1]) - 0.5, 1);
    if (b < LEFT || a > c.width) continue;
    g.globalAlpha = [0.35, 0.9, 0.28][u[4]];
    g.fillStyle = u[4] === 2 ? "#7a8793" : colour(names.indexOf(u[5]));
    g.fillRect(a, y(u[0] + u[1]), Math.max(b - a, 0.6), h);
    g.globalAlpha = 1;
    if (h > 11 && u[4] > 0) label(g, u[5], Math.max(a, LEFT), y(u[0]) - h / 2, b - Math.max(a, LEFT), u[4] === 2 ? "#52606f" : "#fff");
  }
  g.restore();
  g.fillStyle = "#52606f";
  g.textAlign = "right";
  for (let k = 0; k <= 4; ++k) g.fillText(bytes(peak * k / 4), LEFT - 6, y(peak * k / 4));
  g.textAlign = "left";
  g.fillText(`highest address in use ${bytes(peak)} of ${bytes(D.lxBytes)} LX`, LEFT + 2, 290);
  c.uses = uses;
}
function lxAt(event) {
  const box = $("lx").getBoundingClientRect(), t = tOf(event.clientX - box.left, box.width), uses = D.lx[$("lxcore").value] || [];
  const peak = Math.max(1024, ...uses.map((u) => u[0] + u[1])), a = (276 - (event.clientY - box.top)) / 268 * peak;
  const u = uses.find((v) => v[0] <= a && a < v[0] + v[1] && v[2] <= t && t <= v[3]);
  return u ? `${u[5]}\n${bytes(u[1])} at ${u[0]}\n${["being filled", "in use", "temporary"][u[4]]} for ${time(ns(u[3] - u[2]))}` : "";
}

// ---- roofline ---------------------------------------------------------------------------------------------------
function drawRoof() {
  const c = open($("roof"), 420), g = c.g, left = 66, bottom = 382, right = c.width - 14, top = 14;
  const kernels = R.kernels.filter((k) => k.roofline.operations_per_byte && k.roofline.operations_per_s);
  const xs = [0.05, D.roofs.pt / D.roofs.memory * 6, ...kernels.map((k) => k.roofline.operations_per_byte)];
  const ys = [D.roofs.pt * 2, D.roofs.memory * 0.05, ...kernels.map((k) => k.roofline.operations_per_s / 2)];
  const lx = Math.floor(Math.log10(Math.min(...xs))), hx = Math.ceil(Math.log10(Math.max(...xs)));
  const ly = Math.floor(Math.log10(Math.min(...ys))), hy = Math.log10(Math.max(...ys));
  const X = (v) => left + (Math.log10(v) - lx) / (hx - lx) * (right - left), Y = (v) => bottom - (Math.log10(v) - ly) / (hy - ly) * (bottom - top);
  g.strokeStyle = "#e6ebf0";
  g.fillStyle = "#667485";
  for (let e = lx; e <= hx; ++e) {
    g.beginPath(); g.moveTo(X(10 ** e), top); g.lineTo(X(10 ** e), bottom); g.stroke();
    g.textAlign = e === lx ? "left" : e === hx ? "right" : "center";
    g.fillText(10 ** e >= 1 ? 10 ** e : (10 ** e).toPrecision(1), X(10 ** e), bottom + 12);
  }
  g.textAlign = "right";
  for (let e = ly; e <= hy; ++e) {
    g.beginPath(); g.moveTo(left, Y(10 ** e)); g.lineTo(right, Y(10 ** e)); g.stroke();
    g.fillText(rate(10 ** e, "op/s"), left - 6, Y(10 ** e));
  }
  g.textAlign = "center";
  g.fillText("operations per byte of device memory", (left + right) / 2, bottom + 28);
  g.textAlign = "left";
  for (const [peak, name, dash] of [[D.roofs.pt, "PT", []], [D.roofs.sfu, "SFU", [5, 4]]]) {
    const knee = peak / D.roofs.memory;
    g.strokeStyle = "#1d2733";
    g.lineWidth = 1.6;
    g.setLineDash(dash);
    g.beginPath();
    g.moveTo(X(10 ** lx), Y(10 ** lx * D.roofs.memory));
    g.lineTo(X(knee), Y(peak));
    g.lineTo(right, Y(peak));
    g.stroke();
    g.setLineDash([]);
    g.lineWidth = 1;
    g.fillStyle = "#1d2733";
    g.textAlign = "right";
    g.fillText(`${name} ${rate(peak, "op/s")}`, right - 4, Y(peak) - 9);
    g.textAlign = "left";
  }
  const most = Math.max(1, ...kernels.map((k) => k.total_ns));
  spots.length = 0;
  kernels.forEach((k) => {
    const r = k.roofline, x = X(r.operations_per_byte), y = Y(r.operations_per_s), size = 4 + 9 * Math.sqrt(k.total_ns / most);
    g.globalAlpha = 0.8;
    g.fillStyle = partColour(k.bottleneck);
    g.beginPath(); g.arc(x, y, size, 0, 7); g.fill();
    g.globalAlpha = 1;
    g.strokeStyle = "#fff";
    g.stroke();
    spots.push({ x, y, size, k });
  });
  if (kernels.length <= 6) {
    const taken = [];
    kernels.forEach((k, n) => {
      const s = spots[n], w = g.measureText(k.name).width, toLeft = s.x + s.size + w + 10 > right;
      let y = s.y;
      while (taken.some((t) => Math.abs(t - y) < 12)) y += 12;
      taken.push(y);
      g.fillStyle = "#1d2733";
      g.fillText(k.name, toLeft ? s.x - s.size - 4 - w : s.x + s.size + 4, y);
    });
  }
  $("roofhint").textContent = "size: time, colour: critical part; memory " + rate(D.roofs.memory, "B/s") + " one way";
}
const spots = [];

// ---- words and tables -------------------------------------------------------------------------------------------
function tiles() {
  const total = Object.values(R.energy_pj).reduce((a, b) => a + b, 0);
  const links = (R.link_bytes["DDR read"] || 0) + (R.link_bytes["DDR write"] || 0), critical = Object.entries(R.ns_by_bottleneck)[0] || ["-", 0];
  const shown = [["time", time(R.ns)], ["launches", R.launches], ["critical", critical[0] + (R.kernels.length > 1 ? " " + percent(critical[1] / R.ns) : "")],
    ["PT in use", percent(R.utilisation.PT || 0)], ["SFU in use", percent(R.utilisation.SFU || 0)], ["DDR traffic", bytes(links)],
    ["DDR rate", rate(R.ns ? links / R.ns * 1e9 : 0, "B/s")], ["energy", energy(total)], ["mean power", (R.ns ? total / R.ns / 1000 : 0).toFixed(1) + " W"]];
  $("tiles").innerHTML = shown.map(([k, v]) => `<div class="tile"><b>${escape(v)}</b><span>${k}</span></div>`).join("");
  $("sub").textContent = `modelled on chip ${R.chip}; the same on every machine`;
  if (D.notice) { $("notice").hidden = false; $("notice").textContent = "Timeline " + D.notice; }
}
function bar(values) {
  const total = Math.max(1e-12, Object.values(values).reduce((a, b) => a + b, 0));
  return `<div class="bar">${Object.entries(values).filter(([, v]) => v > 0).map(([k, v]) =>
    `<i title="${escape(k)} ${percent(v / total)}" style="width:${100 * v / total}%;background:${partColour(k)}"></i>`).join("")}</div>`;
}
function legend(values) {
  return `<div class="legend">${Object.keys(values).filter((k) => values[k] > 0).map((k) => `<span><i style="background:${partColour(k)}"></i>${escape(k)}</span>`).join("")}</div>`;
}
function sums() {
  const row = (k, cells) => `<tr><td>${escape(k)}</td>${cells.map((c) => `<td${c.text ? ' class="text"' : ""}>${escape(c.text || c)}</td>`).join("")}</tr>`;
  const part = (title, values) => `<p style="margin:6px 0 0;color:var(--soft);font-size:12px">${title}</p>${bar(values)}${legend(values)}`;
  const links = Object.entries(R.link_bytes).map(([k, v]) => row(k, [bytes(v), rate(R.ns ? v / R.ns * 1e9 : 0, "B/s")])).join("");
  const joules = Object.entries(R.energy_pj).map(([k, v]) => row(k, [energy(v), { text: R.energy_sources[k] || "" }])).join("");
  $("sums").innerHTML = part("time by critical part", R.ns_by_bottleneck) + part("energy by part", R.energy_pj) +
    `<table><tr><th>link</th><th>bytes</th><th>mean rate</th></tr>${links}</table>` +
    `<table style="margin-top:8px"><tr><th>energy</th><th></th><th class="text">computed with</th></tr>${joules}</table>`;
}
function kernels() {
  const head = ["kernel", "launches", "one launch", "all", "share", "cores", "PT", "SFU", "DDR", "ops / B", "of roof", "energy", "critical"];
  const body = R.kernels.map((k) => [k.name, k.launches, time(k.ns), time(k.total_ns), percent(k.total_ns / (R.ns || 1)), k.cores,
    percent(k.utilisation.PT || 0), percent(k.utilisation.SFU || 0), bytes(k.ddr_bytes * k.launches),
    k.roofline.operations_per_byte ? k.roofline.operations_per_byte.toPrecision(3) : "-", percent(k.roofline.share), energy(k.energy_uj * 1e6 * k.launches), k.bottleneck]);
  $("table").innerHTML = `<tr>${head.map((h) => `<th>${h}</th>`).join("")}</tr>` +
    body.map((r) => `<tr>${r.map((v) => `<td>${escape(v)}</td>`).join("")}</tr>`).join("");
}
function reasons() {
  const change = (c) => `<li>${escape(c.text)}: ${c.evidence === "bound" ? "up to " : ""}<b>-${percent(c.gain)}</b> (${time(c.gain_ns)}, ${c.evidence})</li>`;
  const shown = R.kernels.slice(0, 20);
  $("why").innerHTML = shown.map((k) => `<div class="kernel"><p><b>${escape(k.name)}</b> ${time(k.ns)}${k.launches > 1 ? " x " + k.launches : ""}</p>
    <p>${escape(k.why)}</p>${bar(k.shares)}${legend(k.shares)}${k.changes.length ? `<ol>${k.changes.map(change).join("")}</ol>` : ""}</div>`).join("") +
    (R.kernels.length > shown.length ? `<p>and ${R.kernels.length - shown.length} kernels that cost less</p>` : "");
}

// ---- start ------------------------------------------------------------------------------------------------------
const cores = allCores.filter((c) => c >= 0);
$("cores").innerHTML = (cores.length > 4 ? `<option value="first">0 to 3</option>` : "") + `<option value="all">all</option>` + cores.map((c) => `<option>${c}</option>`).join("");
view.cores = $("cores").value;
$("lxcore").innerHTML = Object.keys(D.lx).map((c) => `<option>${c}</option>`).join("");
$("cores").onchange = () => { view.cores = $("cores").value; buildRows(); drawTime(); };
$("lxcore").onchange = drawLx;
$("all").onclick = () => setView(0, last);
const named = [...new Set(S.what.filter((_, i) => S.kind[i] !== 1))].sort((a, b) => a - b).slice(0, 24);
$("legend").innerHTML = named.map((i) => `<span><i style="background:${colour(i)}"></i>${escape(D.names[i])}</span>`).join("") + `<span><i style="background:#e3e8ee"></i>wait</span>`;
$("time").addEventListener("mousemove", (e) => {
  const at = spanAt(e);
  tip(e, !at ? "" : at.launch ? `${at.launch.name}\n${time(ns(at.launch.end - at.launch.begin))}, critical: ${at.launch.critical}` : at.span >= 0 ? spanText(at.span) : "");
});
$("time").addEventListener("click", (e) => { const at = spanAt(e); view.picked = at && at.span >= 0 ? at.span : -1; drawTime(); });
$("lx").addEventListener("mousemove", (e) => tip(e, lxAt(e)));
$("roof").addEventListener("mousemove", (e) => {
  const box = $("roof").getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
  const s = spots.find((p) => Math.hypot(p.x - x, p.y - y) < p.size + 3);
  tip(e, s ? `${s.k.name}\n${rate(s.k.roofline.operations_per_s, "op/s")} of ${rate(s.k.roofline.attainable_operations_per_s, "op/s")} (${s.k.roofline.side} roof)\n${time(s.k.total_ns)} in ${s.k.launches} launches` : "");
});
for (const id of ["time", "lx", "roof"]) $(id).addEventListener("mouseleave", () => tip(null, ""));
for (const id of ["time", "lx"]) zoomable($(id));
function drawAll() { drawTime(); drawLx(); drawRoof(); }
window.addEventListener("resize", drawAll);
tiles(); sums(); kernels(); reasons(); buildRows();
const asked = new URLSearchParams(location.hash.slice(1));  // #from=..&to=..&cores=..&pick=.. in cycles, for links and pictures
if (asked.has("cores")) { $("cores").value = view.cores = asked.get("cores"); buildRows(); }
if (asked.has("to")) { view.from = Number(asked.get("from") || 0); view.to = Math.min(Number(asked.get("to")), last); }
if (asked.has("pick")) view.picked = Number(asked.get("pick"));
drawAll();
