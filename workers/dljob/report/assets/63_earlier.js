// Events before those that a live page began with, asked of the command that serves it: some at a time, and with a
// filter only those that it lets through.

// `older`: what was found so far: `list`, oldest first; `before`, the number of the event before which nobody has
// looked; `until`, that of the page's first event then; and the filter that it was asked with.
const NO_EVENTS = [];
const earlier = { older: null, asking: null, trouble: "", box: null };

function earlierList() {
  const old = earlier.older;
  if (!old) return NO_EVENTS;
  const first = firstNumbered();
  const whole = !old.text && !old.reason;
  const unbound = old.from === -Infinity && old.to === Infinity;
  const fits = (whole || (old.text === events.text && old.reason === events.reason)) && (unbound || (events.inWindow && old.from <= page.from && old.to >= page.to));
  // Events that the page has dropped since then would be missing in between.
  if (!fits || !first || first.seq > old.until) {
    earlier.older = null;
    return NO_EVENTS;
  }
  return old.list;
}

// Events of Kubernetes have no number.
const firstNumbered = () => (page.data.events || []).find((event) => event.seq);

const earlierLeft = () => (earlier.older ? earlier.older.before - 1 : page.data.eventsLeftOut || 0);

function buildEarlier() {
  earlier.box = el("button", { type: "button", class: "tool", id: "earlier", title: "Source: events.jsonl, by the command that serves this page", onclick: () => (earlier.asking ? stopEarlier() : askEarlier()) });
  return earlier.box;
}

function showEarlier() {
  const box = earlier.box;
  if (!box) return;
  const left = earlierLeft();
  box.hidden = !page.data.older || !left;
  const filtered = events.text || events.reason || events.inWindow;
  const still = `${grouped(left)} earlier`;
  replace(box, earlier.asking ? `searching ${still}: stop` : earlier.trouble ? `${earlier.trouble}: try again` : filtered ? `search ${still}` : `show some of ${still}`);
}

function stopEarlier() {
  earlier.asking = null;
  earlier.trouble = "";
  showEarlier();
}

async function askEarlier() {
  const mine = {};
  Object.assign(earlier, { asking: mine, trouble: "" });
  showEarlier();
  try {
    while (earlier.asking === mine && earlierLeft() > 0 && !(await askOnce(mine)));
  } catch (error) {
    earlier.trouble = error instanceof TypeError ? "the command does not answer" : error.message;
  }
  if (earlier.asking === mine) earlier.asking = null;
  showEarlier();
}

// Ask once; return whether the search is done for now: something was found, or nobody waits for it any more.
async function askOnce(mine) {
  earlierList(); // forgets what does not fit any more
  const old = earlier.older;
  const first = firstNumbered();
  const { text, reason, inWindow } = events;
  // A window that reaches into the events that the page has may move on.
  const [from, to] = [inWindow ? page.from : -Infinity, inWindow && page.to < first.time ? page.to : Infinity];
  const query = new URLSearchParams({ before: old ? old.before : first.seq, words: text.toLowerCase(), reason, from, to });
  const answer = await fetch(`${page.data.older}?${query}`, { cache: "no-store", credentials: "same-origin" });
  if (!answer.ok) throw await trouble(answer);
  const found = await answer.json();
  if (earlier.asking !== mine) return true;
  earlier.older = { list: [...found.events, ...(old ? old.list : [])], before: found.before, until: old ? old.until : first.seq, text, reason, from, to };
  const count = events.all.length;
  findEvents();
  // What was read stays where it was.
  events.scroller.scrollTop += (events.all.length - count) * rowHeight();
  return found.events.length > 0;
}
