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
  const text = { on: "live", off: `not answering since ${clock(live.failedAt)} UTC${live.trouble ? `: ${live.trouble}` : ""}`, over: "ended", refused: "this link is used up: the terminal gives a new one" }[live.state] || "connecting";
  replace(box, text);
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
  if (!answer.ok) throw new Error(await why(answer));
  update(merge(page.data, await answer.json()));
  return page.data.live === false ? "over" : "on";
}

// The command answers, and says why the job does not.
async function why(answer) {
  try {
    return (await answer.json()).error || `HTTP ${answer.status}`;
  } catch {
    return `HTTP ${answer.status}`;
  }
}

async function follow() {
  while (page.data.source && live.state !== "over" && live.state !== "refused") {
    try {
      live.state = await ask();
      live.failedAt = null;
      live.wait = 0;
    } catch (error) {
      live.trouble = error instanceof TypeError ? "the command that served this page" : error.message;
      // PrimeMaster, the head or the command may be gone for a while; the page goes on asking, less and less often.
      live.state = "off";
      live.failedAt = live.failedAt ?? Date.now() / 1000;
      live.wait = Math.min(10, live.wait ? live.wait * 2 : 0.5);
    }
    showLive();
    if (live.wait) await new Promise((done) => setTimeout(done, live.wait * 1000));
  }
}
