// State of the page: its data, the shared time window, and what is open. Sections are rebuilt from it.

const page = {
  data: {},
  accounts: [],
  start: 0, // the job's first and last moment known
  end: 1,
  from: 0, // the window that all time charts show
  to: 1,
  charts: [],
  open: new Set(), // unfolded roles
  follow: true, // the window's end follows a live job
  incident: null,
};

// Colours stand in the style alone, so that light, dark and print agree; a canvas asks for them here.
const colours = new Map();

function colour(name) {
  let found = colours.get(name);
  if (!found) {
    const probe = document.getElementById("tip");
    probe.style.color = `var(--${name})`;
    found = getComputedStyle(probe).color;
    probe.style.color = "";
    colours.set(name, found);
  }
  return found;
}

const KNOWN_ACCOUNTS = {
  queue: "waiting for capacity",
  schedule: "units requested, not all held",
  init: "processes start, setup() runs",
  productive: "work that counts",
  detect: "lost, and PrimeMaster does not know yet",
  decide: "failure known, restart not ordered yet",
  replace: "new processes are made",
  rendezvous: "waiting for the other ranks of its world",
  recompute: "steps repeated after a restart",
  stalled: "stands still: it waits for a rank that does not go on, or is that rank",
  stale: "loading weights, or too far behind them",
  wait: "a role that it depends on is not ready",
  idle: "ended, or the job is ending",
  spare: "spare processes: not ranks, counted apart",
};

const accountColour = (name) => colour(Object.hasOwn(KNOWN_ACCOUNTS, name) ? `account-${name}` : "account-other");

function adopt(data) {
  page.data = data;
  page.accounts = data.accounts || Object.keys(KNOWN_ACCOUNTS);
  const job = data.job || {};
  let first = seconds(job.start ?? job.startTime);
  let last = seconds(job.end ?? job.completionTime);
  // A clock that went back puts events before the start: the list has them, the axis begins with the job.
  const begun = first;
  for (const { time } of data.events || []) {
    if (typeof time !== "number") continue;
    if (begun === null && (first === null || time < first)) first = time;
    if (last === null || time > last) last = time;
  }
  for (const incident of data.incidents || []) {
    if (incident.until && (last === null || incident.until > last)) last = incident.until;
  }
  const now = data.made && data.made.at;
  if (data.live && now && (last === null || now > last)) last = now;
  first = first ?? now ?? 0;
  last = last ?? now ?? first + 1;
  page.start = first;
  page.end = last > first ? last : first + 1;
  monotone(data.lanes);
}

// A clock may have gone back within a lane; drawn as it is, a lane must never run to the left.
function monotone(lanes) {
  for (const ranks of Object.values(lanes || {})) {
    for (const lane of ranks) {
      if (!lane) continue;
      for (let i = 2; i < lane.length; i += 2) if (lane[i] < lane[i - 2]) lane[i] = lane[i - 2];
    }
  }
}

const span = () => page.to - page.from;

function setWindow(from, to) {
  const whole = page.end - page.start;
  const least = Math.min(whole, Math.max(whole / 1e6, 0.01));
  let size = Math.max(least, Math.min(whole, to - from));
  let left = Math.max(page.start, Math.min(from, page.end - size));
  page.from = left;
  page.to = left + size;
  page.follow = page.to >= page.end - whole * 1e-6;
  redraw();
}

function zoom(factor, around = (page.from + page.to) / 2) {
  setWindow(around - (around - page.from) * factor, around + (page.to - around) * factor);
}

const pan = (share) => setWindow(page.from + span() * share, page.to + span() * share);

let frame = 0;

function redraw() {
  if (!frame) frame = requestAnimationFrame(() => {
    frame = 0;
    drawNow();
  });
}

function drawNow() {
  const height = innerHeight;
  for (const chart of page.charts) {
    const box = chart.canvas.getBoundingClientRect();
    const near = box.bottom > -200 && box.top < height + 200;
    if (near || page.printing) chart.paint(box);
    else chart.stale = true;
  }
  for (const changed of page.watchers) changed();
}

page.watchers = [];
