// The timeline: overview, axis with incidents, lanes and curves; all move together.

const timeline = {};

function buildTimeline() {
  const data = page.data;
  page.charts = [];
  page.watchers = [];
  if (!seconds((data.job || {}).start ?? (data.job || {}).startTime) && !(data.events || []).length) {
    return [note("The job has no start and no events: there is no time to draw. ", unrecordedOf("events"))];
  }
  const bands = el("div", { class: "bands", "aria-hidden": "true" });
  const cross = el("div", { class: "cross", hidden: true });
  const chosen = el("div", { class: "chosen", hidden: true });
  absent.length = 0;
  const rows = el("div", { class: "rows" }, lanesRow(), curveRows(), weightRows(), callRows(), queueRows(), memoryRows(), absentRow());
  const charts = el("div", { class: "charts" }, el("div", { class: "overlay" }, bands, cross, chosen), rows);
  const box = el("div", { class: "timeline" }, toolbar(), axisRow(), charts);
  Object.assign(timeline, { box, bands, cross, chosen });
  page.watchers.push(drawBands, drawWindow);
  pointers(box);
  return [box];
}

// ------------------------------------------------------------------------------------------------ window and axis

function toolbar() {
  const button = (text, label, act) => el("button", { type: "button", class: "tool", title: label, "aria-label": label, onclick: act }, text);
  timeline.window = el("span", { class: "window", role: "status", title: "Source: the window that all charts over time show" });
  return el("div", { class: "toolbar" },
    el("div", { class: "tools" },
      button("+", "Zoom in (+ or w)", () => zoom(0.5)), button("\u2212", "Zoom out (- or s)", () => zoom(2)),
      button("\u2190", "Earlier (left or a)", () => pan(-0.25)), button("\u2192", "Later (right or d)", () => pan(0.25)),
      button("Whole job", "Show the whole job (0)", () => setWindow(page.start, page.end))),
    timeline.window,
    el("span", { class: "hint" }, "Drag to zoom, Shift+drag to move, Ctrl+wheel to zoom, double click for the whole job"));
}

function drawWindow() {
  if (!timeline.window) return;
  const whole = page.to - page.from >= (page.end - page.start) * 0.9999;
  replace(timeline.window, `${stamp(page.from)} to ${stamp(page.to)} UTC, ${whole ? "whole job" : "window"} of ${duration(span())}`);
}

function axisRow() {
  const overview = new TimeChart({
    height: 28,
    label: "The whole job, with the window that is shown below. Drag to move the window.",
    draw: drawOverview,
    source: "the job's journal",
  });
  overview.canvas.classList.add("overview");
  overviewPointer(overview.canvas);
  const axis = new TimeChart({ height: 24, label: "Axis of time, UTC", draw: drawAxis, source: "the window" });
  axis.canvas.removeAttribute("tabindex");
  page.charts.push(overview, axis);
  timeline.marks = el("div", { class: "marks", role: "group", "aria-label": "Incidents on the axis" });
  page.watchers.push(drawMarks);
  return el("div", { class: "axis" },
    el("div", { class: "row" }, el("div", { class: "row-name small" }, "whole job"), el("div", { class: "row-plot" }, overview.canvas)),
    el("div", { class: "row" }, el("div", { class: "row-name small" }, "time, UTC"),
      el("div", { class: "row-plot" }, timeline.marks, axis.canvas)));
}

const overviewCache = {};

function drawOverview(context, scale) {
  const all = roleNames().flatMap(lanesOf).filter(Boolean);
  context.fillStyle = colour("empty");
  context.fillRect(0, 0, scale.width, scale.height);
  if (all.length) drawCached(context, scale, all);
  const x = (time) => ((time - page.start) / (page.end - page.start)) * scale.width;
  const left = x(page.from);
  const right = Math.max(left + 2, x(page.to));
  context.fillStyle = colour("shade");
  context.fillRect(0, 0, left, scale.height);
  context.fillRect(right, 0, scale.width - right, scale.height);
  context.strokeStyle = colour("accent");
  context.lineWidth = 2;
  context.strokeRect(left + 1, 1, Math.max(1, right - left - 2), scale.height - 2);
}

// The whole job is the same in each frame of a zoom, and of all ranks: it is drawn once.
function drawCached(context, scale, all) {
  const key = `${scale.width}x${scale.height}:${page.start}:${page.end}:${document.documentElement.dataset.theme}:${colour("text")}`;
  if (overviewCache.key !== key || overviewCache.data !== page.data) {
    const canvas = el("canvas");
    canvas.width = scale.width;
    canvas.height = scale.height;
    drawShares(canvas.getContext("2d"), all, all.length, 0, 0, scale.width, scale.height, page.start, page.end);
    Object.assign(overviewCache, { key, data: page.data, canvas });
  }
  context.drawImage(overviewCache.canvas, 0, 0);
}

function overviewPointer(canvas) {
  const move = (event) => {
    const box = canvas.getBoundingClientRect();
    const middle = page.start + ((event.clientX - box.left) / box.width) * (page.end - page.start);
    setWindow(middle - span() / 2, middle + span() / 2);
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    move(event);
    event.stopPropagation();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (canvas.hasPointerCapture(event.pointerId)) move(event);
  });
}

// ------------------------------------------------------------------------------------------------ incidents above all

function plotWidth() {
  return timeline.marks ? timeline.marks.getBoundingClientRect().width : 0;
}

// Incidents closer than a mark is wide are one mark: a click on it zooms until they part.
function clusters(width, gap) {
  const found = [];
  (page.data.incidents || []).forEach((incident, index) => {
    const until = incident.until ?? page.end;
    if (until < page.from || incident.at > page.to) return;
    const x = Math.max(0, ((incident.at - page.from) / span()) * width);
    const last = found[found.length - 1];
    const right = Math.min(width, ((until - page.from) / span()) * width);
    if (last && x - last.x < gap) {
      last.of.push(index);
      last.right = Math.max(last.right, right);
    } else found.push({ x, right, of: [index] });
  });
  return found;
}

function drawMarks() {
  const width = plotWidth();
  if (!width) return;
  const found = clusters(width, 27);
  // A mark that is made anew between the press and the release of a button loses its click.
  const drawn = JSON.stringify([found, page.incident]);
  if (timeline.marks.drawn === drawn) return;
  timeline.marks.drawn = drawn;
  const held = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.incident : undefined;
  replace(timeline.marks, found.map((cluster) => {
    const index = cluster.of[0];
    const single = cluster.of.length === 1;
    const incident = page.data.incidents[index];
    const label = single
      ? `Incident ${index + 1}: ${incident.target}: ${incident.reason || "failure"}, ${clock(incident.at)} UTC`
      : `${cluster.of.length} incidents from ${index + 1} on: zoom in`;
    const made = el("button", {
      class: single ? "mark" : "mark many", type: "button", title: `${label}. Source: the job's journal and status`, "aria-label": visible(label),
      "aria-pressed": String(page.incident !== null && cluster.of.includes(page.incident)),
      onclick: () => (single ? openIncident(index) : zoomTo(cluster.of)),
    }, single ? String(index + 1) : `${index + 1}+`);
    made.dataset.incident = String(index);
    made.style.left = `${Math.min(cluster.x, width - (single && index < 9 ? 20 : 26))}px`;
    return made;
  }));
  if (held !== undefined) timeline.marks.querySelector(`[data-incident="${CSS.escape(held)}"]`)?.focus();
}

function zoomTo(indexes) {
  const some = indexes.map((index) => page.data.incidents[index]);
  const from = Math.min(...some.map((incident) => incident.at));
  const to = Math.max(...some.map((incident) => incident.until ?? page.end));
  const margin = Math.max((to - from) * 0.15, 1);
  if (to - from + 2 * margin >= span()) openIncident(indexes[0]);
  else setWindow(from - margin, to + margin);
}

// Incidents that overlap are one band, so that no tint is laid over another; each has a line where it begins.
function drawBands() {
  const found = clusters(plotWidth(), 1);
  const drawn = JSON.stringify([found, page.incident]);
  if (timeline.bands.drawn === drawn) return;
  timeline.bands.drawn = drawn;
  const joined = [];
  for (const { x, right } of found) {
    const last = joined[joined.length - 1];
    if (last && x <= last.right) last.right = Math.max(last.right, right);
    else joined.push({ x, right });
  }
  const open = found.filter((cluster) => page.incident !== null && cluster.of.includes(page.incident));
  const piece = (kind, x, right) => {
    const made = el("div", { class: kind });
    made.style.left = `${x}px`;
    made.style.width = `${Math.max(1, right - x)}px`;
    return made;
  };
  replace(timeline.bands, joined.map(({ x, right }) => piece("band", x, right)), found.map(({ x }) => piece("begin", x, x + 1)),
    open.map(({ x, right }) => piece("band open", x, right)));
}

// ------------------------------------------------------------------------------------------------ pointer, wheel, keys

function timeAt(canvas, clientX) {
  const box = canvas.getBoundingClientRect();
  return page.from + ((clientX - box.left) / box.width) * span();
}

function pointers(box) {
  let drag = null;
  box.addEventListener("pointerdown", (event) => {
    const canvas = event.target.closest(".plot:not(.overview)");
    if (!canvas || event.button !== 0) return;
    const moves = event.shiftKey || event.pointerType === "touch";
    drag = { canvas, x: event.clientX, moves, from: page.from, to: page.to };
    timeline.held = true;
    canvas.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    const canvas = drag ? drag.canvas : event.target.closest(".plot:not(.overview)");
    if (!canvas) return hideTip();
    if (drag && drag.moves) {
      const shift = ((drag.x - event.clientX) / canvas.getBoundingClientRect().width) * (drag.to - drag.from);
      setWindow(drag.from + shift, drag.to + shift);
    } else if (drag) showChosen(drag, event.clientX);
    return showTip(canvas, event);
  });
  const end = (event) => {
    if (!drag) return;
    const { canvas, x, moves } = drag;
    drag = null;
    timeline.chosen.hidden = true;
    const times = [timeAt(canvas, x), timeAt(canvas, event.clientX)].sort((a, b) => a - b);
    release();
    if (moves || event.type === "pointercancel" || Math.abs(event.clientX - x) < 5) return;
    setWindow(times[0], times[1]);
  };
  box.addEventListener("pointerup", end);
  box.addEventListener("pointercancel", end);
  box.addEventListener("pointerleave", hideTip);
  box.addEventListener("dblclick", (event) => {
    if (event.target.closest(".plot")) setWindow(page.start, page.end);
  });
  box.addEventListener("wheel", (event) => {
    const canvas = event.target.closest(".plot");
    if (!canvas || !(event.ctrlKey || event.metaKey || event.shiftKey || event.deltaX)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), timeAt(canvas, event.clientX));
    else pan((event.deltaX || event.deltaY) / 1000);
  }, { passive: false });
}

// What a live page has new waits until the pointer lets go of the charts that it would replace.
function release() {
  timeline.held = false;
  if (!timeline.late) return;
  timeline.late = false;
  fillSection(SECTIONS.find(({ id }) => id === "timeline"));
  redraw();
}

function showChosen(drag, clientX) {
  const box = drag.canvas.getBoundingClientRect();
  const x0 = Math.max(0, Math.min(drag.x, clientX) - box.left);
  const x1 = Math.min(box.width, Math.max(drag.x, clientX) - box.left);
  timeline.chosen.hidden = x1 - x0 < 3;
  timeline.chosen.style.left = `${x0}px`;
  timeline.chosen.style.width = `${x1 - x0}px`;
}

function showTip(canvas, event) {
  const tip = document.getElementById("tip");
  const box = canvas.getBoundingClientRect();
  const time = timeAt(canvas, event.clientX);
  timeline.cross.hidden = false;
  timeline.cross.style.transform = `translateX(${event.clientX - box.left}px)`;
  const lines = canvas.chart.describe(time, event.clientY - box.top);
  replace(tip, el("div", { class: "tip-time" }, `${stamp(time)} UTC, +${duration(time - page.start)}`),
    lines.filter(Boolean).map((line) => (Array.isArray(line) ? el("div", null, swatch(line[0]), user(line[1])) : el("div", null, user(line)))),
    canvas.chart.source && el("div", { class: "tip-source" }, `Source: ${canvas.chart.source}`));
  tip.hidden = false;
  const size = tip.getBoundingClientRect();
  const left = event.clientX + 16 + size.width > innerWidth ? Math.max(4, event.clientX - size.width - 16) : event.clientX + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(4, Math.min(innerHeight - size.height - 4, event.clientY + 14))}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
  if (timeline.cross) timeline.cross.hidden = true;
}

// ------------------------------------------------------------------------------------------------ rows

function lanesRow() {
  if (!page.data.lanes || !roleNames().length) {
    return el("div", { class: "row wide" }, el("h4", null, "Lanes"),
      note(roleNames().length ? "Nobody recorded in which account each rank was. " : "The job has no roles. ", unrecordedOf("lanes")));
  }
  const lanes = new Lanes();
  const scrolled = timeline.lanes ? timeline.lanes.scroller.scrollTop : 0;
  page.watchers.push(() => {
    // A box can be scrolled only once it stands in the page.
    if (timeline.lanes === lanes && lanes.scrolled) lanes.scroller.scrollTop = lanes.scrolled;
    lanes.scrolled = 0;
  });
  lanes.scrolled = scrolled;
  timeline.lanes = lanes;
  page.charts.push(lanes.chart);
  const used = new Set((page.data.ledger ? Object.keys(page.data.ledger.accounts || {}) : page.accounts));
  const [button, alternative] = tableButton("Lanes", laneTable());
  return el("div", { class: "row wide lanes" }, el("div", { class: "words" }, el("h4", null, "Lanes ", el("span", { class: "sub" }, "share of a role's ranks in each account; open a role for its ranks ", button)),
    el("ul", { class: "legend accounts" }, page.accounts.filter((name) => used.has(name)).map((name) => el("li", { title: KNOWN_ACCOUNTS[name] || name }, swatch(accountColour(name)), user(name))))),
    lanes.scroller, alternative);
}

function samplesOf(part) {
  const samples = page.data.samples;
  return samples && Array.isArray(samples.times) && samples.times.length ? samples[part] : null;
}

// What has no chart is told in one place, in words.
const absent = [];

function missingRow(title, what, part) {
  absent.push(el("div", null, el("dt", null, title), el("dd", null, what, " ", unrecordedOf(part))));
  return null;
}

function absentRow() {
  return absent.length ? el("div", { class: "row wide" }, el("h4", null, "Without a chart"), el("dl", { class: "facts" }, absent)) : null;
}

// Lines of roles' series, each rank in a colour of its own; `first` is the number of lines that the chart has already.
function roleLines(byRole, first = 0) {
  let next = first;
  return Object.entries(byRole || {}).flatMap(([role, series]) => {
    const lines = rankLines(role, series, next);
    next += Array.isArray(series) ? lines.length : 1;
    return lines;
  });
}

// A role's series: by rank, or, of many ranks, the least, the middle and the greatest of them at each time.
function rankLines(role, series, first) {
  if (!series) return [];
  if (!Array.isArray(series)) {
    const paint = lineColour(first);
    return ["high", "middle", "low"].filter((key) => series[key]).map((key) => ({
      name: `${role} ${{ high: "greatest", middle: "median", low: "least" }[key]}`, values: series[key], colour: paint,
      dash: key === "middle" ? [] : [3, 3], width: key === "middle" ? 1.8 : 1,
      legend: key === "middle" ? `${role}: median, and dashed the least and greatest rank` : null,
    }));
  }
  return series.map((values, rank) => values && { name: `${role}/${rank}`, values }).filter(Boolean)
    .map((line, index) => ({ ...line, colour: lineColour(first + index), dash: lineDash(first + index) }));
}

function sampledChart(title, lines, { format = compact, source, zero = false, ceiling = null, height = 96 }) {
  const times = page.data.samples.times;
  const chart = lineChart({ label: `${title}: ${lines.slice(0, 6).map((line) => `${line.name} ${format(lastOf(line.values))} at the end`).join(", ")}`, lines, times, height, format, source, zero, ceiling });
  return chartRow(chart, title, legend(lines, source), sampleTable(lines.slice(0, 12), times, format, source));
}

function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i -= 1) if (values[i] !== null && values[i] !== undefined) return values[i];
  return null;
}

const SAMPLED = "samples that PrimeMaster took, at most one a second";

function curveRows() {
  const steps = samplesOf("steps");
  const progress = samplesOf("progress");
  const stepLines = roleLines(steps);
  const rows = [stepLines.length
    ? sampledChart("Steps", stepLines, { source: `${SAMPLED}, of what ranks report by progress(step)` })
    : missingRow("Steps", "No steps were recorded: ranks report them by progress(step).", "steps")];
  if (stepLines.length) {
    const times = page.data.samples.times;
    const paces = stepLines.map((line) => ({ ...line, values: secondsOfSteps(times, line.values) }));
    rows.push(sampledChart("Seconds a step", paces, { source: `${SAMPLED}, of the times between steps`, zero: true, height: 72 }));
  }
  const names = Object.entries(progress || {});
  names.forEach(([name, values], index) => {
    rows.push(sampledChart(name, [{ name, values, colour: lineColour(index + 1) }], { source: `${SAMPLED}, of progress(step, ${name}=...)` }));
  });
  if (!names.length) rows.push(missingRow("Loss, reward", "No metrics were recorded: a driver reports them by progress(step, loss=...).", "progress"));
  return rows;
}

// The seconds that each step took by the samples around it; null until a rank's second step.
function secondsOfSteps(times, steps) {
  let before = null;
  let took = null;
  return steps.map((step, i) => {
    if (typeof step !== "number") return null;
    if (before === null || step < steps[before]) {
      before = i;
      took = null;
    } else if (step > steps[before]) {
      took = (times[i] - times[before]) / (step - steps[before]);
      before = i;
    } else if (took !== null) {
      return Math.max(took, times[i] - times[before]); // a step that goes on has taken as long already
    }
    return took;
  });
}

function weightRows() {
  const weights = Object.entries(samplesOf("weights") || {});
  if (!weights.length) return [missingRow("Weight versions", "No weights were published, or nobody recorded them.", "weights")];
  return weights.flatMap(([name, { published, held: byRole }]) => {
    const held = roleLines(byRole, 1);
    const lines = [{ name: "published", values: published, colour: lineColour(0), width: 2 }, ...held];
    return [sampledChart(`Weights ${name}: version`, lines, { source: `${SAMPLED}, of versions published and taken` }),
      held.length ? sampledChart(`Weights ${name}: versions behind`, staleness(published, held), { source: "published version less the rank's", zero: true, height: 72 }) : null];
  });
}

function staleness(published, held) {
  const behind = published.map((version, at) => held.map(({ values }) => (version === null || typeof values[at] !== "number" ? null : version - values[at]))
    .filter((value) => value !== null).sort((a, b) => a - b));
  return [{ name: "the rank that is most behind", values: behind.map((all) => (all.length ? all[all.length - 1] : null)), colour: lineColour(1) },
    { name: "median", values: behind.map((all) => (all.length ? all[all.length >> 1] : null)), colour: lineColour(0) }];
}

// A counter's sum: one that falls was begun anew, by a restart of PrimeMaster.
function grown(counts) {
  let sum = 0;
  let last = 0;
  for (const count of counts) {
    if (typeof count !== "number") continue;
    sum += count >= last ? count - last : count;
    last = count;
  }
  return sum;
}

// The same as rates.
function rates(times, counts) {
  return counts.map((count, i) => {
    if (i === 0 || count === null || counts[i - 1] === null || times[i] <= times[i - 1]) return null;
    const more = count - counts[i - 1];
    return (more >= 0 ? more : count) / (times[i] - times[i - 1]);
  });
}

function callRows() {
  const calls = Object.entries(samplesOf("calls") || {});
  if (!calls.length) return [missingRow("Calls between roles", "No calls between roles were made, or nobody recorded them.", "calls")];
  const times = page.data.samples.times;
  const rate = calls.map(([name, of], index) => ({ name, values: rates(times, of.sent || []), colour: lineColour(index), dash: lineDash(index) }));
  const now = (key) => calls.map(([name, of], index) => ({ name, values: of[key] || [], colour: lineColour(index), dash: lineDash(index) }));
  const source = `${SAMPLED}, of the callers' counters`;
  const meanTime = ({ sent, underWay, tookMs }) => {
    const ended = tookMs ? grown(sent) - (lastOf(underWay) || 0) : 0;
    return ended > 0 ? duration(grown(tookMs) / ended / 1000) : "-";
  };
  return [sampledChart("Calls a second", rate, { source, zero: true }),
    sampledChart("Calls under way", now("underWay"), { source, zero: true, height: 72 }),
    sampledChart("Calls parked", now("parked"), { source, zero: true, height: 72 }),
    el("div", { class: "row wide" }, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Calls, sums" },
      el("table", { class: "plain" }, el("caption", null, "Calls until the end"),
        el("thead", null, el("tr", null, ["call", "sent", "under way", "mean time", "sent again", "lost"].map((cell) => el("th", { scope: "col" }, cell)))),
        el("tbody", null, calls.map(([name, of]) => el("tr", null, el("th", { scope: "row" }, user(name)),
          [of.sent && compact(grown(of.sent)), of.underWay && compact(lastOf(of.underWay)), meanTime(of), of.again && compact(grown(of.again)), of.lost && compact(grown(of.lost))]
            .map((text) => el("td", null, figure(text || "-", source)))))))))];
}

function queueRows() {
  const queues = Object.entries(samplesOf("queues") || {});
  if (!queues.length) return [missingRow("Queues", "The job has no queues, or nobody recorded their fill.", "queues")];
  return queues.map(([name, { items, capacity }]) => {
    const most = Array.isArray(capacity) ? lastOf(capacity) : capacity;
    // Against its bound where it came near it: 8 items of 1,000 would be a flat line.
    const isNear = most && Math.max(0, ...items.filter((count) => typeof count === "number")) * 2 >= most;
    return sampledChart(`Queue ${name}`, [{ name: most ? `items of ${compact(most)}` : "items", values: items, colour: lineColour(2) }],
      { source: `${SAMPLED}, of the queue's keeper`, zero: true, ceiling: isNear ? most : null, height: 72 });
  });
}

function memoryRows() {
  return [["memory", "Memory of ranks", bytes], ["device", "Memory of devices", bytes]].map(([part, title, format]) => {
    const lines = roleLines(samplesOf(part));
    if (!lines.length) return missingRow(title, "Nobody recorded it.", part);
    return sampledChart(title, lines, { format, source: `${SAMPLED}, of the ranks' heartbeats`, zero: true });
  });
}
