// Charts over time: one canvas each, one shared window. `draw` gets a scale; bands of incidents, the crosshair and the
// selection are elements above all charts, so that moving the pointer repaints none of them.

class TimeChart {
  constructor({ height, label, draw, describe, source }) {
    this.height = height;
    this.draw = draw;
    this.describe = describe || (() => []);
    this.source = source;
    this.canvas = el("canvas", { class: "plot", role: "img", tabindex: "0", "aria-label": label });
    this.canvas.style.height = `${height}px`;
    this.canvas.chart = this;
  }

  paint(box = this.canvas.getBoundingClientRect()) {
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const width = Math.floor(box.width);
    const height = Math.floor(box.height);
    if (width < 2 || height < 2) return;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    this.draw(context, { width, height, x: (time) => ((time - page.from) / span()) * width });
    this.stale = false;
  }
}

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

// Steps of an axis of time, in seconds: what people read at a glance.
const TICKS = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  86400, 172800, 432000, 864000, 2592000, 7776000, 31536000];

function ticks(width) {
  const wanted = span() / Math.max(2, width / 90);
  const step = TICKS.find((candidate) => candidate >= wanted) || TICKS[TICKS.length - 1];
  const found = [];
  for (let time = Math.ceil(page.from / step) * step; time <= page.to && found.length < 500; time += step) found.push(time);
  return found;
}

function drawGrid(context, scale) {
  context.fillStyle = colour("grid");
  for (const time of ticks(scale.width)) context.fillRect(Math.round(scale.x(time)), 0, 1, scale.height);
}

function drawAxis(context, scale) {
  context.fillStyle = colour("muted");
  context.textAlign = "center";
  for (const time of ticks(scale.width)) {
    const x = scale.x(time);
    const text = clock(time, span());
    const half = context.measureText(text).width / 2;
    context.fillRect(Math.round(x), scale.height - 5, 1, 5);
    if (x >= half && x <= scale.width - half) context.fillText(text, x, scale.height - 13);
  }
  context.textAlign = "left";
}

// The value of an axis' end: 1, 2 or 5 times a power of ten.
function niceStep(range, wanted) {
  const raw = range / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= raw) return factor * power;
  return 10 * power;
}

// First index whose time is greater.
function after(times, time) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A chart of lines. `lines`: name, values by the samples' times, colour, dashed; null in values is a gap.
function lineChart({ label, lines, times, height = 96, format = compact, source, zero = false, ceiling = null }) {
  let range = [0, 1];
  const draw = (context, scale) => {
    drawGrid(context, scale);
    const first = Math.max(0, after(times, page.from) - 1);
    const last = Math.min(times.length - 1, after(times, page.to));
    range = rangeOf(lines, first, last, zero, ceiling);
    const y = (value) => scale.height - 8 - ((value - range[0]) / (range[1] - range[0])) * (scale.height - 16);
    const levels = levelsOf(range, format);
    context.fillStyle = colour("grid");
    for (const value of levels) context.fillRect(0, Math.round(y(value)), scale.width, 1);
    for (const line of lines) drawLine(context, scale, line, times, first, last, y);
    drawLevels(context, scale, levels, y, format);
  };
  const describe = (time) => {
    const index = after(times, time) - 1;
    if (index < 0) return ["before the first sample"];
    return [`sampled ${stamp(times[index])} UTC`,
      ...lines.slice(0, 14).map((line) => [line.colour, `${line.name}: ${format(line.values[index])}`]),
      ...(lines.length > 14 ? [`and ${lines.length - 14} more`] : [])];
  };
  return new TimeChart({ height, label, draw, describe, source });
}

function rangeOf(lines, first, last, zero, ceiling) {
  let low = zero ? 0 : Infinity;
  let high = ceiling ?? -Infinity;
  for (const { values } of lines) {
    for (let i = first; i <= last; i += 1) {
      const value = values[i];
      if (typeof value !== "number") continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (low === high) return zero ? [0, high || 1] : [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  return [low, high];
}

function levelsOf([low, high], format) {
  // Bytes are read in steps of their unit, a power of 1,024.
  const unit = format === bytes ? 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, high)) / Math.log(1024))) : 1;
  const step = niceStep((high - low) / unit, 4) * unit;
  const levels = [];
  for (let at = Math.ceil(low / step); at * step <= high + step / 1e6 && levels.length < 20; at += 1) levels.push(at * step);
  return levels;
}

function drawLevels(context, scale, levels, y, format) {
  for (const value of levels) {
    const text = format === compact && Math.abs(value) < 1000 ? String(Number(value.toPrecision(6))) : format(value);
    const top = Math.max(7, Math.min(scale.height - 7, y(value)));
    context.fillStyle = colour("veil");
    context.fillRect(0, top - 7, context.measureText(text).width + 6, 14);
    context.fillStyle = colour("muted");
    context.fillText(text, 3, top);
  }
}

// Points behind a time in which nobody sampled, such as a restart of PrimeMaster: no line leads to them. Older samples
// are further apart than younger ones, so an interval is long by comparison with both its neighbours.
const knownGaps = new WeakMap();

function gapsOf(times) {
  let found = knownGaps.get(times);
  if (!found) {
    found = new Set();
    for (let i = 2; i < times.length - 1; i += 1) {
      const took = times[i] - times[i - 1];
      if (took > 5 && took > 4 * (times[i - 1] - times[i - 2]) && took > 4 * (times[i + 1] - times[i])) found.add(i);
    }
    knownGaps.set(times, found);
  }
  return found;
}

// Samples that share a pixel are drawn as their least and greatest value: no spike is lost, whatever the zoom.
function drawLine(context, scale, line, times, first, last, y) {
  context.strokeStyle = line.colour;
  context.lineWidth = line.width || 1.6;
  context.setLineDash(line.dash || []);
  context.beginPath();
  let pen = false;
  let column = -1;
  let low = 0;
  let high = 0;
  const gaps = gapsOf(times);
  const flush = () => {
    if (column < 0) return;
    if (pen) context.lineTo(column, y(low));
    else context.moveTo(column, y(low));
    if (high !== low) context.lineTo(column, y(high));
    pen = true;
    column = -1;
  };
  for (let i = first; i <= last; i += 1) {
    const value = line.values[i];
    if (typeof value !== "number") {
      flush();
      pen = false;
      continue;
    }
    if (gaps.has(i)) {
      flush();
      pen = false;
    }
    const x = Math.round(scale.x(times[i]) * 2) / 2;
    if (x !== column) {
      flush();
      column = x;
      low = value;
      high = value;
    } else {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  flush();
  context.stroke();
  context.setLineDash([]);
}

const openTables = new Set(); // a live page is built again while they are open

function tableButton(title, table) {
  const alternative = el("div", { class: "alternative" });
  const button = el("button", { type: "button", class: "as-table", "aria-label": `${title} as a table`, title: `${title} as a table` }, "table");
  const show = () => {
    const open = openTables.has(title);
    alternative.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    replace(alternative, open && tableOf(title, table));
  };
  button.addEventListener("click", () => {
    if (!openTables.delete(title)) openTables.add(title);
    show();
    redraw();
  });
  show();
  return [button, alternative];
}

// A row of the timeline: its name in the gutter, its legend and chart beside it, the same as a table on demand.
function chartRow(chart, title, legend, table) {
  page.charts.push(chart);
  const [button, alternative] = tableButton(title, table);
  return el("div", { class: "row" }, el("div", { class: "row-name" }, el("h4", null, user(title)), button),
    el("div", { class: "row-plot" }, legend, chart.canvas, alternative));
}

// The text alternative of a chart; made when it is asked for, since most are not.
function tableOf(title, { head, rows, source }) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": visible(`${title}, table`) },
    el("table", { title: `Source: ${source}` },
      el("thead", null, el("tr", null, head.map((cell) => el("th", { scope: "col" }, user(cell))))),
      el("tbody", null, rows().map((row) => el("tr", null, row.map((cell) => el("td", null, user(cell))))))));
}

function sampleTable(lines, times, format, source) {
  return {
    head: ["time (UTC)", ...lines.map((line) => line.name)],
    source,
    rows: () => {
      const stride = Math.max(1, Math.ceil(times.length / 60));
      const rows = [];
      for (let i = 0; i < times.length; i += stride) {
        rows.push([stamp(times[i]), ...lines.map((line) => (line.values[i] === null ? "-" : format(line.values[i])))]);
      }
      return rows;
    },
  };
}

function legend(all, source) {
  const lines = all.filter((line) => line.legend !== null);
  return el("ul", { class: "legend", title: `Source: ${source}` }, lines.slice(0, 12).map((line) => el("li", null, swatch(line.colour), user(line.legend || line.name))),
    lines.length > 12 && el("li", null, `and ${lines.length - 12} more`));
}

function swatch(paint) {
  return el("span", { class: "swatch", "aria-hidden": "true", style: { background: paint } });
}

const LINE_COLOURS = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];
const lineColour = (index) => colour(LINE_COLOURS[index % LINE_COLOURS.length]);
const lineDash = (index) => [[], [6, 3], [2, 2], [8, 3, 2, 3]][Math.floor(index / LINE_COLOURS.length) % 4];
