// The live page: one question at a time, answered when something changed. An answer is a whole document, or, with
// `since`, a part of one: its events are appended to those that the page has, `tails` are new ends of lanes, and its
// other parts replace theirs.

const live = { state: "", failedAt: null, wait: 0, trouble: "" };

function showLive() {
  const box = document.getElementById("live");
  if (!box) return;
  const source = page.data.source;
  if (!source) {
    box.hidden = true;
    return;
  }
  box.hidden = false;
  box.className = `live ${live.state}`;
  // It was served a moment ago; the first answer comes with the first change, and of a job that has ended none.
  const begin = page.data.live === false ? "ended" : location.protocol.startsWith("http") ? "live" : "connecting";
  const text = { on: "live", off: `not answering since ${clock(live.failedAt)} UTC`, over: "ended", refused: "this link is used up: the terminal gives a new one" }[live.state] || begin;
  replace(box, text);
  // The reason may be long: it has a line of its own.
  const away = document.getElementById("away");
  away.hidden = live.state !== "off";
  replace(away, away.hidden ? null : live.trouble);
  box.title = "Source: the command that serves this page";
}

function merge(old, fresh) {
  if (fresh.since === undefined || fresh.since === null) return fresh;
  const { events: added, since, tails, ...parts } = fresh;
  const lanes = parts.lanes || old.lanes || {};
  for (const [role, rank, keep, values] of tails || []) {
    if (!Object.hasOwn(lanes, role)) lanes[role] = [];
    while (lanes[role].length <= rank) lanes[role].push([]);
    lanes[role][rank].splice(keep, Infinity, ...values);
  }
  return { ...old, ...parts, lanes: tails ? lanes : parts.lanes ?? old.lanes, ...longer(old, added || []) };
}

// A page that stays open for days keeps the newest events; it can ask for the others again.
function longer(old, added) {
  if (!added.length) return {};
  const all = [...(old.events || []), ...added];
  const dropped = old.older && all.length > KEPT_EVENTS ? all.length - KEPT_EVENTS / 2 : 0;
  return { events: dropped ? all.slice(dropped) : all, eventsLeftOut: (old.eventsLeftOut || 0) + dropped };
}

const KEPT_EVENTS = 20000;

async function ask() {
  const answer = await fetch(`${page.data.source}?after=${encodeURIComponent(page.data.version ?? "")}`, { cache: "no-store", credentials: "same-origin" });
  if (answer.status === 401 || answer.status === 403) return "refused";
  if (answer.status === 204) return page.data.live === false ? "over" : "on";
  if (!answer.ok) throw await trouble(answer);
  update(merge(page.data, await answer.json()));
  return page.data.live === false ? "over" : "on";
}

// Why the job does not answer, and since when: the page may have had changes meanwhile.
async function trouble(answer) {
  const said = await answer.json().catch(() => ({}));
  return Object.assign(new Error(said.error || `HTTP ${answer.status}`), { since: said.since });
}


async function follow() {
  if (page.data.live === false) live.state = "over";
  while (page.data.source && live.state !== "over" && live.state !== "refused") {
    try {
      live.state = await ask();
      live.failedAt = null;
      live.wait = 0;
    } catch (error) {
      // PrimeMaster or the head may be gone for a while, which the command tells; the command itself is asked less and
      // less often.
      const gone = error instanceof TypeError;
      live.state = "off";
      live.trouble = gone ? "the command that served this page" : error.message;
      live.failedAt = error.since ?? live.failedAt ?? Date.now() / 1000;
      live.wait = gone && live.wait ? Math.min(10, live.wait * 2) : 0.5;
    }
    showLive();
    if (live.wait) await new Promise((done) => setTimeout(done, live.wait * 1000));
  }
}
