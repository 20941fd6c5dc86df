// What stands around the sections: the bar at the top, the drawer, help, themes and keys.

const drawer = { closed: null, from: null };

function openDrawer(title, content, closed) {
  const box = document.getElementById("drawer");
  if (box.hidden) drawer.from = wayBack(document.activeElement);
  drawer.closed = closed || null;
  const heading = el("h2", { id: "drawer-title", tabindex: "-1" }, user(title));
  replace(box, el("div", { class: "drawer-head" }, heading, el("button", { type: "button", class: "tool", "aria-label": "Close (Escape)", title: "Close (Escape)", onclick: closeDrawer }, "\u2715")), el("div", { class: "drawer-body" }, content));
  box.hidden = false;
  document.body.classList.add("with-drawer");
  heading.focus({ preventScroll: true });
}

function closeDrawer() {
  const box = document.getElementById("drawer");
  if (box.hidden) return;
  box.hidden = true;
  document.body.classList.remove("with-drawer");
  if (drawer.closed) drawer.closed();
  const from = drawer.from && drawer.from();
  if (from) from.focus({ preventScroll: true });
}

// Marks and rows are made anew while a panel is open: what had the focus is found again by what it stands for.
function wayBack(element) {
  const { incident, event } = element.dataset || {};
  if (incident !== undefined) return () => document.querySelector(`.marks [data-incident="${CSS.escape(incident)}"]`);
  if (event !== undefined) return () => document.querySelector(`.event-rows [data-event="${CSS.escape(event)}"]`);
  return () => (element.isConnected ? element : null);
}

const KEYS = [["/", "filter events"], ["?", "this help"], ["Escape", "close a panel"], ["+ or w, - or s", "zoom in, out"], ["\u2190 or a, \u2192 or d", "move the window"],
  ["0", "show the whole job"], ["n, p", "next, previous incident"], ["u", "unfold or fold all roles"], ["t", "light, dark, as the system"], ["Tab, Enter", "reach and press each part"]];

function openHelp() {
  openDrawer("Help", [
    el("h3", null, "Keys"), el("table", { class: "plain keys" }, el("tbody", null, KEYS.map(([key, what]) => el("tr", null, el("th", { scope: "row" }, el("kbd", null, key)), el("td", null, what))))),
    el("h3", null, "Pointer"), note("On charts: drag to zoom into a part, Shift+drag to move, Ctrl+wheel to zoom, double click for the whole job. On a touch screen a drag moves the window. Hover over any number for its source."),
    el("h3", null, "Accounts of the ledger"), el("dl", { class: "facts" }, page.accounts.map((name) => el("div", null, el("dt", null, swatch(accountColour(name)), user(name)), el("dd", null, KNOWN_ACCOUNTS[name] || "")))),
  ]);
}

// On a narrow screen a sign stands for the words.
const themeName = (theme) => [el("span", { class: "narrow", "aria-hidden": "true" }, "\u25d0"), el("span", { class: "wide-only" }, `Theme: ${theme}`)];

const THEMES = ["system", "light", "dark"];

function applyTheme(theme) {
  const root = document.documentElement;
  root.dataset.theme = theme;
  colours.clear();
  stored.set("theme", theme);
  const button = document.getElementById("theme");
  if (button) replace(button, themeName(theme));
}

function nextTheme() {
  applyTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  rebuild();
}

function buildTop() {
  const job = page.data.job || {};
  return [el("div", { class: "brand" }, el("span", { class: "dljob", "aria-hidden": "true" }, "dljob"), el("h1", { title: `Job ${job.name}, uid ${job.uid}. Source: the job's status` }, user(job.name ?? "a job")),
    user(job.phase ?? "Unknown", { class: `badge ${phaseKind(job.phase)}`, title: "Source: the job's status" }), el("span", { id: "live", class: "live", role: "status" })),
  el("nav", { "aria-label": "Parts of the page" }, el("ul", null, SECTIONS.map(({ id, title }) => el("li", null, el("a", { href: `#${id}` }, title))))),
  el("div", { class: "tools" }, el("button", { id: "theme", type: "button", class: "tool", title: "Light, dark, or as the system (t)", "aria-label": `Theme: ${document.documentElement.dataset.theme}`, onclick: nextTheme }, themeName(document.documentElement.dataset.theme)),
    el("button", { id: "help", type: "button", class: "tool", title: "Keys and colours (?)", "aria-label": "Help (?)", onclick: openHelp }, "?")),
  el("p", { id: "away", class: "away", role: "status", hidden: true, title: "Source: the command that serves this page" })];
}

function stepIncident(by) {
  const count = (page.data.incidents || []).length;
  if (!count) return;
  openIncident(page.incident === null ? (by > 0 ? 0 : count - 1) : Math.max(0, Math.min(count - 1, page.incident + by)));
}

function foldAll() {
  const names = roleNames();
  const all = names.every((name) => page.open.has(name));
  for (const name of names) if (all) page.open.delete(name); else page.open.add(name);
  if (timeline.lanes) timeline.lanes.layout();
  redraw();
}

function focusFilter() {
  const input = document.getElementById("filter");
  if (!input) return;
  document.getElementById("events").scrollIntoView({ block: "start" });
  input.focus({ preventScroll: true });
  input.select();
}

const ACTIONS = {
  "/": focusFilter, "?": openHelp, t: nextTheme, u: foldAll, n: () => stepIncident(1), p: () => stepIncident(-1),
  "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2),
  a: () => pan(-0.25), d: () => pan(0.25), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), 0: () => setWindow(page.start, page.end),
};

function onKey(event) {
  if (event.key === "Escape") {
    if (event.target.id === "filter") event.target.blur();
    return closeDrawer();
  }
  const typing = event.target.closest && event.target.closest("input, select, textarea");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  // Arrows belong to what is scrolled by them; a chart has nothing to scroll sideways.
  if (event.key.startsWith("Arrow") && event.target.closest && event.target.closest(".scroll, .events-scroll, pre")) return undefined;
  const act = Object.hasOwn(ACTIONS, event.key) ? ACTIONS[event.key] : null;
  if (!act) return undefined;
  event.preventDefault();
  return act();
}
