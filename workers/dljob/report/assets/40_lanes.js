// Lanes: role x rank over time, coloured by the account of the ledger. A folded role is drawn as shares of its ranks; an
// unfolded one row by row. Both cost by what is seen: segments within the window, rows within the scrolled box.

const FOLDED = 46;
const GAP = 6;

// Rank-columns in each account, exactly: the ends of a segment fill their pixel in part, what is between by differences.
function shares(lanes, accounts, from, to, columns, until) {
  const cover = new Float32Array(accounts * columns);
  const steps = new Float32Array(accounts * (columns + 1));
  const scale = columns / (to - from);
  for (const lane of lanes) {
    if (!lane) continue;
    for (let i = laneAt(lane, from); i < lane.length; i += 2) {
      const begin = lane[i];
      if (begin >= to) break;
      const account = lane[i + 1];
      if (account < 0 || account >= accounts) continue;
      const end = i + 2 < lane.length ? lane[i + 2] : until;
      const x0 = Math.max(0, (begin - from) * scale);
      const x1 = Math.min(columns, (end - from) * scale);
      if (x1 <= x0) continue;
      const c0 = Math.floor(x0);
      const c1 = Math.min(columns - 1, Math.floor(x1));
      if (c0 === c1) cover[account * columns + c0] += x1 - x0;
      else {
        cover[account * columns + c0] += c0 + 1 - x0;
        cover[account * columns + c1] += x1 - c1;
        steps[account * (columns + 1) + c0 + 1] += 1;
        steps[account * (columns + 1) + c1] -= 1;
      }
    }
  }
  for (let account = 0; account < accounts; account += 1) {
    let run = 0;
    for (let column = 0; column < columns; column += 1) {
      run += steps[account * (columns + 1) + column];
      cover[account * columns + column] += run;
    }
  }
  return cover;
}

// Index of the segment that holds `time`, or the first one.
function laneAt(lane, time) {
  let low = 0;
  let high = lane.length >> 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane[middle * 2] <= time) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1) * 2;
}

// Work at the bottom, so that what is missing from the top is what was lost.
function stackOrder() {
  const order = page.accounts.map((_, index) => index);
  const productive = page.accounts.indexOf("productive");
  return productive < 0 ? order : [productive, ...order.filter((index) => index !== productive)];
}

function drawShares(context, lanes, ranks, left, top, width, height, from, to) {
  const columns = Math.max(1, Math.floor(width));
  const cover = shares(lanes, page.accounts.length, from, to, columns, page.end);
  const base = new Float32Array(columns);
  for (const account of stackOrder()) {
    context.fillStyle = accountColour(page.accounts[account]);
    for (let column = 0; column < columns; column += 1) {
      let run = column;
      const value = cover[account * columns + column];
      if (value <= 0) continue;
      // Equal neighbours are one rectangle: most of a long job is the same colour for hundreds of pixels.
      while (run + 1 < columns && cover[account * columns + run + 1] === value && base[run + 1] === base[column]) run += 1;
      const size = (value / ranks) * height;
      const bottom = top + height - (base[column] / ranks) * height;
      context.fillRect(left + column, bottom - size, run - column + 1, size);
      for (let at = column; at <= run; at += 1) base[at] += value;
      column = run;
    }
  }
}

// One rank: a pixel with several accounts shows the one that lost most, so that a short failure stays visible.
function drawLane(context, lane, top, height, scale) {
  const productive = page.accounts.indexOf("productive");
  let filled = -1; // the last pixel column that shows a loss: work does not paint over it
  for (let i = laneAt(lane, page.from); i < lane.length; i += 2) {
    const begin = lane[i];
    if (begin >= page.to) break;
    const account = lane[i + 1];
    if (account < 0) continue;
    const end = i + 2 < lane.length ? lane[i + 2] : page.end;
    let x0 = Math.max(0, scale.x(begin));
    let x1 = Math.min(scale.width, scale.x(end));
    if (account === productive) {
      x0 = Math.max(x0, filled);
      if (x1 - x0 <= 0) continue;
    } else {
      x1 = Math.max(x1, x0 + 1);
      filled = x1;
    }
    context.fillStyle = accountColour(page.accounts[account]);
    context.fillRect(x0, top, x1 - x0, height);
  }
}

const rankHeight = (count) => (count <= 32 ? 16 : count <= 200 ? 10 : 5);

class Lanes {
  constructor() {
    this.scroller = el("div", { class: "lanes-scroll" });
    this.names = el("div", { class: "lanes-names" });
    this.chart = new TimeChart({
      height: 100,
      label: this.summary(),
      draw: (context, scale) => this.draw(context, scale),
      describe: (time, y) => this.describe(time, y),
      source: "the job's journal, or its samples where it has no journal",
    });
    this.spacer = el("div", { class: "lanes-spacer" }, this.names, el("div", { class: "lanes-canvas" }, this.chart.canvas));
    this.scroller.append(this.spacer);
    this.scroller.addEventListener("scroll", redraw, { passive: true });
    this.layout();
  }

  summary() {
    return `Accounts of the ledger over time. ${roleNames().map((name) => `${name}: ${plural(lanesOf(name).length, "rank")}`).join(", ")}. `
      + "The table of the ledger has the sums.";
  }

  layout() {
    let top = 0;
    this.rows = roleNames().map((name) => {
      const lanes = lanesOf(name);
      const open = page.open.has(name);
      const each = rankHeight(lanes.length);
      const row = { name, lanes, open, each, top, height: FOLDED + (open ? lanes.length * each + 4 : 0) };
      top += row.height + GAP;
      return row;
    });
    this.total = Math.max(20, top - GAP);
    const shown = Math.min(this.total, Math.max(240, Math.round(innerHeight * 0.62)));
    this.scroller.style.height = `${shown}px`;
    this.spacer.style.height = `${this.total}px`;
    this.chart.canvas.style.height = `${shown}px`;
    replace(this.names, this.rows.map((row) => this.button(row)));
  }

  button(row) {
    const role = (page.data.roles || []).find((one) => one.name === row.name) || {};
    const made = el("button", {
      class: "fold", type: "button", "aria-expanded": String(row.open), disabled: row.lanes.length === 0,
      title: `${row.name}: ${role.type || "role"}${role.driver ? ", driver" : ""}, ${plural(row.lanes.length, "rank")}. `
        + `${row.open ? "Fold to shares" : "Unfold to ranks"}. Source: the spec, and the journal`,
      onclick: () => {
        if (row.open) page.open.delete(row.name);
        else page.open.add(row.name);
        this.layout();
        redraw();
        [...this.names.children].find((each) => each.dataset.role === row.name).focus();
      },
    }, el("span", { class: "fold-mark", "aria-hidden": "true" }, row.open ? "\u25be" : "\u25b8"), user(row.name, { class: "fold-name" }),
    el("span", { class: "fold-count" }, `${grouped(row.lanes.length)}\u00d7`));
    made.dataset.role = row.name;
    made.style.top = `${row.top}px`;
    return made;
  }

  draw(context, scale) {
    const seen = this.scroller.scrollTop;
    drawGrid(context, scale);
    for (const row of this.rows) {
      const top = row.top - seen;
      if (top > scale.height || top + row.height < 0 || !row.lanes.length) continue;
      context.fillStyle = colour("empty");
      context.fillRect(0, top, scale.width, FOLDED - 2);
      drawShares(context, row.lanes, row.lanes.length, 0, top, scale.width, FOLDED - 2, page.from, page.to);
      if (row.open) this.drawRanks(context, scale, row, top + FOLDED + 2);
    }
  }

  drawRanks(context, scale, row, top) {
    const first = Math.max(0, Math.floor(-top / row.each));
    const last = Math.min(row.lanes.length, Math.ceil((scale.height - top) / row.each));
    for (let rank = first; rank < last; rank += 1) {
      const lane = row.lanes[rank];
      if (lane) drawLane(context, lane, top + rank * row.each, row.each - (row.each > 12 ? 2 : row.each > 8 ? 1 : 0), scale);
    }
    const stride = row.each >= 14 ? 1 : Math.ceil(40 / row.each / 10) * 10;
    for (let rank = Math.ceil(first / stride) * stride; rank < last; rank += stride) this.rankName(context, rank, top + (rank + 0.5) * row.each);
  }

  rankName(context, rank, y) {
    const text = `rank ${rank}`;
    context.fillStyle = colour("veil");
    context.fillRect(0, y - 6, context.measureText(text).width + 8, 12);
    context.fillStyle = colour("text");
    context.fillText(text, 4, y);
  }

  describe(time, y) {
    const at = y + this.scroller.scrollTop;
    const row = this.rows.find((one) => at >= one.top && at < one.top + one.height);
    if (!row || !row.lanes.length) return [];
    const rank = row.open ? Math.floor((at - row.top - FOLDED - 2) / row.each) : -1;
    if (rank >= 0 && rank < row.lanes.length) return this.describeRank(row, rank, time);
    const counts = new Map();
    for (const lane of row.lanes) {
      const account = lane && lane.length && time >= lane[0] ? lane[laneAt(lane, time) + 1] : -1;
      counts.set(account, (counts.get(account) || 0) + 1);
    }
    const lines = [...counts].sort((a, b) => b[1] - a[1]).map(([account, count]) => (account < 0
      ? `${grouped(count)} of ${grouped(row.lanes.length)} not there`
      : [accountColour(page.accounts[account]), `${page.accounts[account]}: ${grouped(count)} of ${plural(row.lanes.length, "rank")}`]));
    return [row.name, ...lines];
  }

  describeRank(row, rank, time) {
    const lane = row.lanes[rank] || [];
    const index = laneAt(lane, time);
    const account = lane.length && time >= lane[0] ? lane[index + 1] : -1;
    if (!(account >= 0)) return [`${row.name}/${rank}`, "not there at this time"];
    const end = index + 2 < lane.length ? lane[index + 2] : page.end;
    const name = page.accounts[account];
    return [`${row.name}/${rank}`, [accountColour(name), `${name}: ${duration(end - lane[index])}`],
      KNOWN_ACCOUNTS[name] || "", `from ${stamp(lane[index])} to ${stamp(end)} UTC`];
  }
}

// The lanes of the window as a table: how much of each role's time was in each account.
function laneTable() {
  return {
    head: ["role", "ranks", ...page.accounts],
    source: "the job's journal, in the window that is shown",
    rows: () => roleNames().map((name) => {
      const cover = shares(lanesOf(name), page.accounts.length, page.from, page.to, 1, page.end);
      const all = cover.reduce((sum, value) => sum + value, 0);
      return [name, grouped(lanesOf(name).length), ...page.accounts.map((_, account) => (all ? percent(cover[account] / all) : "-"))];
    }),
  };
}

const lanesOf = (role) => (page.data.lanes && page.data.lanes[role]) || [];

function roleNames() {
  const named = (page.data.roles || []).map((role) => role.name);
  const others = Object.keys(page.data.lanes || {}).filter((name) => !named.includes(name));
  return [...named, ...others];
}
