// Events: all of them, filtered as one types; only the rows within the scrolled box are elements. A live page begins
// with the newest ones; 63_earlier.js asks for those before them.

// `all`: the events that the page has, oldest first; `found`: the places in it of those that the filter lets through.
const events = { text: "", reason: "", inWindow: false, found: [], words: null, all: [], of: null };

function buildEvents() {
  const all = page.data.events;
  if (!all) return [note("Events were not recorded. ", unrecordedOf("events"))];
  if (!all.length) return [note("The job has no events yet.")];
  const counts = new Map();
  for (const event of all) counts.set(event.reason, (counts.get(event.reason) || 0) + 1);
  const reasons = [...counts].sort((a, b) => b[1] - a[1]);
  const input = el("input", { id: "filter", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "words, all of which must occur", value: events.text,
    oninput: (event) => changeFilter({ text: event.target.value }) });
  const select = el("select", { id: "filter-reason", onchange: (event) => changeFilter({ reason: event.target.value }) },
    el("option", { value: "" }, "any reason"), reasons.map(([reason, count]) => el("option", { value: reason, selected: reason === events.reason }, `${reason} (${grouped(count)})`)));
  const within = el("input", { id: "filter-window", type: "checkbox", checked: events.inWindow, onchange: (event) => changeFilter({ inWindow: event.target.checked }) });
  events.count = el("span", { class: "count", role: "status", title: "Source: events.jsonl" });
  events.rows = el("div", { class: "event-rows", role: "list", "aria-label": "Events" });
  events.scroller = el("div", { class: "events-scroll", tabindex: "0", role: "region", "aria-label": "Events, arrows scroll" }, events.rows);
  events.scroller.addEventListener("scroll", drawEvents, { passive: true });
  page.watchers.push(() => {
    if (events.inWindow) findEvents();
  });
  const more = buildEarlier();
  findEvents();
  return [el("div", { class: "controls" },
    el("label", { for: "filter" }, "Filter ", el("kbd", null, "/")), input, el("label", { for: "filter-reason", class: "hidden" }, "Reason"), select,
    el("label", { class: "check" }, within, "in the window of the timeline"), events.count, more), events.scroller];
}

function changeFilter(changes) {
  Object.assign(events, changes);
  stopEarlier();
  findEvents();
}

const rowHeight = () => (innerWidth < 640 ? 58 : 30);

function findEvents() {
  const held = page.data.events || [];
  const before = earlierList();
  if (!events.of || events.of[0] !== held || events.of[1] !== before) {
    events.all = before.length ? [...before, ...held] : held;
    // One text of each event, made once: a filter is then one search in each.
    events.words = events.all.map((event) => `${event.reason} ${event.target} ${event.message} ${event.level || ""}`.toLowerCase());
    events.of = [held, before];
  }
  const all = events.all;
  const wanted = events.text.toLowerCase().split(/\s+/).filter(Boolean);
  events.found = [];
  for (let i = 0; i < all.length; i += 1) {
    const event = all[i];
    if (events.reason && event.reason !== events.reason) continue;
    if (events.inWindow && (event.time < page.from || event.time > page.to)) continue;
    if (wanted.every((word) => events.words[i].includes(word))) events.found.push(i);
  }
  const left = page.data.older ? 0 : page.data.eventsLeftOut;
  replace(events.count, `${grouped(events.found.length)} of ${plural(all.length, "event")}${left ? `; ${grouped(left)} more are in the job's folder` : ""}`);
  showEarlier();
  const height = Math.max(rowHeight(), events.found.length * rowHeight());
  events.rows.style.height = `${height}px`;
  events.scroller.style.height = `${Math.min(height, 480) + 2}px`;
  drawEvents();
}

function drawEvents() {
  if (!events.rows) return;
  const each = rowHeight();
  const top = events.scroller.scrollTop;
  const room = page.printing ? 60 : Math.ceil(500 / each);
  const first = Math.max(0, Math.floor(top / each) - 4);
  const last = Math.min(events.found.length, first + room + 8);
  const held = document.activeElement && events.rows.contains(document.activeElement) ? document.activeElement.dataset.event : null;
  const rows = [];
  for (let at = first; at < last; at += 1) rows.push(eventRow(events.found[at], at, each));
  replace(events.rows, rows.length ? rows : note("No event has these words."));
  if (held !== null) events.rows.querySelector(`[data-event="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
}

function eventRow(index, at, each) {
  const event = events.all[index];
  const made = el("div", { class: "event", role: "listitem", "aria-posinset": String(at + 1), "aria-setsize": String(events.found.length), title: `Event ${event.seq ?? index + 1}. Source: events.jsonl` },
    el("button", { type: "button", class: "event-open", "aria-label": visible(`Event ${event.seq ?? index + 1}, ${event.reason} of ${event.target}: details`), onclick: () => openEvent(index) },
      moment(event.time)),
    user(event.reason ?? "", { class: "event-reason" }), user(event.target ?? "", { class: "event-target" }), user(event.message ?? "", { class: "event-message" }));
  made.firstChild.dataset.event = String(index);
  made.style.top = `${at * each}px`;
  made.style.height = `${each}px`;
  return made;
}

function openEvent(index) {
  const event = events.all[index];
  const source = `events.jsonl, event ${event.seq ?? index + 1}`;
  openDrawer(`Event ${event.seq ?? index + 1}: ${event.reason}`, [
    el("div", { class: "panel-tools" }, el("button", { type: "button", class: "tool", onclick: () => {
      const margin = Math.max(span() / 8, 1);
      setWindow(event.time - margin, event.time + margin);
      document.getElementById("timeline").scrollIntoView({ block: "start" });
    } }, "Show on the timeline")),
    el("dl", { class: "facts", title: `Source: ${source}` }, Object.entries(event).map(([key, value]) => fact(key, key === "time" ? `${stamp(value)} UTC (${value})` : typeof value === "object" ? JSON.stringify(value) : value))),
  ]);
}
