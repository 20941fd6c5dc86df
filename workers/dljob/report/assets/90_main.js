// Start: sections in reading order, each rebuilt only when its part of the data changed.

const SECTIONS = [
  { id: "summary", title: "Summary", build: buildHeader, parts: ["job", "ledger", "incidents"] },
  { id: "timeline", title: "Timeline", build: buildTimeline, parts: ["samples", "roles"] },
  { id: "incidents", title: "Incidents", build: buildIncidents, parts: ["incidents"] },
  { id: "ledger", title: "Ledger", build: buildLedger, parts: ["ledger"] },
  { id: "placement", title: "Placement", build: buildPlacement, parts: ["placement"] },
  { id: "events", title: "Events", build: buildEvents, parts: ["events"] },
  { id: "whatifs", title: "What if", build: buildWhatIfs, parts: ["whatifs"] },
  { id: "spec", title: "Spec", build: buildSpec, parts: ["spec"] },
  { id: "about", title: "About", build: buildAbout, parts: ["unrecorded", "made"] },
];

function fillSection({ id, title, build }) {
  const box = document.getElementById(id);
  let content;
  try {
    content = build();
  } catch (error) {
    // One part of a damaged record must not take the rest of the page with it.
    console.error(error);
    content = [note(`This part could not be drawn: ${error.message}. The page's data is damaged, or of another version.`)];
  }
  replace(box, el("h2", null, title), content);
}

// What is seen first is painted first; the other sections follow, each in a task of its own.
const FIRST = 2;

async function build() {
  replace(document.getElementById("top"), buildTop());
  SECTIONS.slice(0, FIRST).forEach(fillSection);
  showLive();
  drawNow();
  await painted();
  for (const section of SECTIONS.slice(FIRST)) {
    fillSection(section);
    await new Promise((done) => setTimeout(done));
  }
  // A link into the page was followed before there was anything to scroll to.
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  if (wanted) wanted.scrollIntoView();
}

// A hidden tab has no frames, and its page is built all the same.
const painted = () => new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 500);
});

function rebuild() {
  replace(document.getElementById("top"), buildTop());
  SECTIONS.forEach(fillSection);
  showLive();
  drawNow();
}

function update(data) {
  const old = page.data;
  const followed = page.follow;
  const size = span();
  const whole = page.from <= page.start;
  adopt(data);
  if (followed) Object.assign(page, { to: page.end, from: whole ? page.start : Math.max(page.start, page.end - size) });
  const scroll = events.scroller ? events.scroller.scrollTop : 0;
  // Lanes and bands are read at each drawing; the timeline is built again only where it has other rows.
  const began = Boolean(old.lanes) !== Boolean(data.lanes) || !timeline.box;
  const changed = SECTIONS.filter(({ id, parts }) => (id === "timeline" && began) || parts.some((part) => differs(old[part], data[part])));
  for (const section of changed) {
    if (section.id === "events" && events.rows && data.events && data.events.length) findEvents(); // what is typed stays
    else if (section.id === "timeline" && timeline.held) timeline.late = true;
    else fillSection(section);
  }
  if (events.scroller) events.scroller.scrollTop = scroll;
  if (timeline.lanes) timeline.lanes.layout();
  const badge = document.querySelector("#top .badge");
  const phase = (data.job || {}).phase ?? "Unknown";
  if (badge) {
    replace(badge, phase);
    badge.className = `badge ${phaseKind(phase)}`;
  }
  drawNow();
}

function differs(old, fresh) {
  if (old === fresh) return false;
  if (Array.isArray(old) && Array.isArray(fresh) && old.length !== fresh.length) return true;
  return typeof old !== "object" || typeof fresh !== "object" || JSON.stringify(old) !== JSON.stringify(fresh);
}

function start() {
  const theme = stored.get("theme");
  document.documentElement.dataset.theme = THEMES.includes(theme) ? theme : "system";
  const main = document.getElementById("page");
  let data;
  try {
    data = JSON.parse(document.getElementById("data").textContent);
  } catch (error) {
    replace(main, note(`The page's data cannot be read: ${error.message}. The file is damaged: make it again by dljob report.`));
    return;
  }
  if (data.format !== 1) {
    replace(main, note(`The page's data has format ${data.format}, and this script reads format 1. Make the page again by dljob report.`));
    return;
  }
  adopt(data);
  Object.assign(page, { from: page.start, to: page.end });
  const job = data.job || {};
  document.title = visible(`${job.name}: ${job.phase}`);
  replace(main, SECTIONS.map(({ id, title }) => el("section", { id, "aria-label": title })));
  page.ready = build();
  listen();
  page.ready.then(follow);
}

function listen() {
  document.addEventListener("keydown", onKey);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (timeline.lanes) timeline.lanes.layout();
    if (width !== innerWidth && events.rows) findEvents();
    width = innerWidth;
    redraw();
  });
  addEventListener("scroll", () => {
    if (page.charts.some((chart) => chart.stale)) redraw();
  }, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    rebuild();
  });
  addEventListener("beforeprint", () => {
    page.printing = true;
    colours.clear();
    drawEvents();
    drawNow();
  });
  addEventListener("afterprint", () => {
    page.printing = false;
    colours.clear();
    redraw();
  });
}

addEventListener("DOMContentLoaded", start);
