// The live page: one question at a time, answered when something changed. An answer is a whole document, or, with
// `since`, a part of one: its events are appended to those that the page has, its other parts replace theirs.

const live = { state: "", failedAt: null, wait: 0 };

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
  const text = { on: "live", off: `not answering since ${clock(live.failedAt)} UTC`, over: "ended", refused: "this link is used up: the terminal gives a new one" }[live.state] || "connecting";
  replace(box, text);
  box.title = "Source: the command that serves this page";
}

function merge(old, fresh) {
  if (fresh.since === undefined || fresh.since === null) return fresh;
  const { events: added, since, ...parts } = fresh;
  return { ...old, ...parts, events: added ? [...(old.events || []), ...added] : old.events };
}

async function ask() {
  const answer = await fetch(`${page.data.source}?after=${encodeURIComponent(page.data.version ?? "")}`, { cache: "no-store", credentials: "same-origin" });
  if (answer.status === 401 || answer.status === 403) return "refused";
  if (answer.status === 204) return page.data.live === false ? "over" : "on";
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  update(merge(page.data, await answer.json()));
  return page.data.live === false ? "over" : "on";
}

async function follow() {
  while (page.data.source && live.state !== "over" && live.state !== "refused") {
    try {
      live.state = await ask();
      live.failedAt = null;
      live.wait = 0;
    } catch {
      // PrimeMaster, the head or the command may be gone for a while; the page goes on asking, less and less often.
      live.state = "off";
      live.failedAt = live.failedAt ?? Date.now() / 1000;
      live.wait = Math.min(10, live.wait ? live.wait * 2 : 0.5);
    }
    showLive();
    if (live.wait) await new Promise((done) => setTimeout(done, live.wait * 1000));
  }
}
