// Incidents: a list, and a panel of each with all that is known of it.

const STAGE_COLOURS = { noticed: "account-detect", decided: "account-decide", placed: "account-schedule", started: "account-replace", "first step": "account-recompute" };

function stagesOf(incident) {
  const stages = incident.stages || [];
  const list = Array.isArray(stages) ? stages : Object.entries(stages).map(([name, value]) => ({ name, seconds: value }));
  return list.filter((stage) => typeof stage.seconds === "number");
}

const incidentView = { shown: 100 };

function buildIncidents() {
  const incidents = page.data.incidents;
  if (!incidents) return [note("Incidents were not recorded. ", unrecordedOf("incidents"))];
  if (!incidents.length) return [note("Nothing failed: no rank, node or master was lost or restarted.")];
  const slowest = incidents.reduce((most, incident) => Math.max(most, (incident.until ?? page.end) - incident.at), 0.001);
  const left = incidents.length - incidentView.shown;
  const more = left > 0 ? el("button", { type: "button", class: "tool", title: "Source: the job's journal and status", onclick: () => {
    incidentView.shown += 500;
    fillSection(SECTIONS.find(({ id }) => id === "incidents"));
  } }, `Show more (${grouped(left)} left)`) : null;
  return [el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Incidents" }, el("table", { class: "incidents" },
    el("thead", null, el("tr", null, ["#", "time, UTC", "what", "level", "seconds by stage", "steps lost"].map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", null, incidents.slice(0, incidentView.shown).map((incident, index) => el("tr", null,
      el("td", null, el("button", { type: "button", class: "mark still", "aria-label": `Open incident ${index + 1}`, title: `Open incident ${index + 1}. Source: the job's journal`, onclick: () => openIncident(index) }, String(index + 1))),
      el("td", { class: "nowrap", title: `${stamp(incident.at)} UTC. Source: the job's journal` }, moment(incident.at)),
      el("td", { class: "grow", title: "Source: the first cause that PrimeMaster found" }, el("strong", null, user(`${incident.target}: ${incident.reason || "failure"}`)), el("div", { class: "sub" }, user(incident.cause || ""))),
      el("td", { class: "nowrap level" }, user(levelName(incident.level || "-"))),
      el("td", { class: "stage-cell" }, stageBar(incident, slowest)),
      el("td", { class: "number" }, figure(incident.lostSteps === null || incident.lostSteps === undefined ? "-" : grouped(incident.lostSteps), "steps reported before and after the restart"))))))), more];
}

function stageBar(incident, slowest) {
  const total = (incident.until ?? page.end) - incident.at;
  const stages = stagesOf(incident);
  const sum = stages.reduce((all, stage) => all + stage.seconds, 0);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${Math.max(2, (total / slowest) * 100)}%`;
  for (const stage of stages) {
    const piece = el("div", { class: "piece" });
    piece.style.flexGrow = String(stage.seconds);
    piece.style.background = colour(STAGE_COLOURS[stage.name] || "account-other");
    bar.append(piece);
  }
  if (!sum) bar.append(el("div", { class: "piece unknown" }));
  const text = incident.until ? duration(total) : `${duration(total)}, not over`;
  return el("div", { class: "bar-cell", title: `${stages.map((stage) => `${stage.name} ${duration(stage.seconds)}`).join(", ") || "stages were not recorded"}. Source: the job's journal` },
    el("div", { class: "bar-track" }, bar), el("span", { class: "bar-text" }, text));
}

function openIncident(index) {
  page.incident = index;
  const incident = page.data.incidents[index];
  openDrawer(`Incident ${index + 1}: ${incident.target}: ${incident.reason || "failure"}`, incidentPanel(incident, index), () => {
    page.incident = null;
    redraw();
  });
  redraw();
}

function incidentPanel(incident, index) {
  const restarted = incident.restarted;
  const source = "the job's journal";
  return [
    el("div", { class: "panel-tools" },
      el("button", { type: "button", class: "tool", disabled: index === 0, onclick: () => openIncident(index - 1) }, "\u2190 Previous"),
      el("button", { type: "button", class: "tool", disabled: index === page.data.incidents.length - 1, onclick: () => openIncident(index + 1) }, "Next \u2192"),
      el("button", { type: "button", class: "tool", onclick: () => showAround(incident) }, "Show on the timeline")),
    el("h3", null, "Cause"),
    el("p", { class: "cause-line", title: "Source: the first cause that PrimeMaster found" }, user(incident.cause || "unknown")),
    (incident.evidence || []).length
      ? el("ul", { class: "evidence", title: "Source: evidence that PrimeMaster collected" }, incident.evidence.map((line) => el("li", null, user(line))))
      : note("No evidence was recorded."),
    (incident.followed || []).length ? [el("h3", null, "What followed"), el("ul", { title: `Source: ${source}` }, incident.followed.map((line) => el("li", null, user(typeof line === "string" ? line : JSON.stringify(line)))))] : null,
    el("dl", { class: "facts", title: `Source: ${source}` },
      fact("Level", levelName(incident.level || "-")), fact("From", `${stamp(incident.at)} UTC`),
      fact("Until", incident.until ? `${stamp(incident.until)} UTC, after ${duration(incident.until - incident.at)}` : "not over"),
      fact("Rank", incident.rank ? `${incident.rank}${incident.incarnation ? `, incarnation ${incident.incarnation}` : ""}` : "none alone"),
      fact("Steps lost", incident.lostSteps === null || incident.lostSteps === undefined ? "not recorded" : grouped(incident.lostSteps))),
    el("h3", null, "Seconds by stage"), stageTable(incident),
    el("h3", null, restarted ? `Who restarted (${plural(restarted.length, "rank")})` : "Who restarted"), restarted ? rankList(restarted) : note("Who restarted was not recorded."),
    el("h3", null, "Log lines around"), logs(incident.log),
    el("h3", null, "Stacks"), stacks(incident.stacks),
  ];
}

const fact = (name, value) => el("div", null, el("dt", null, name), el("dd", null, user(value)));

function stageTable(incident) {
  const stages = stagesOf(incident);
  if (!stages.length) return note("Stages were not recorded.");
  const most = Math.max(...stages.map((stage) => stage.seconds), 0.001);
  return el("table", { class: "stages" }, el("tbody", null, stages.map((stage) => {
    const bar = el("div", { class: "bar" });
    bar.style.width = `${(stage.seconds / most) * 100}%`;
    bar.hidden = stage.seconds <= 0;
    bar.style.background = colour(STAGE_COLOURS[stage.name] || "account-other");
    return el("tr", null, el("th", { scope: "row" }, user(stage.name)), el("td", { class: "grow" }, bar), el("td", { class: "number" }, figure(duration(stage.seconds), "the job's journal")));
  })));
}

// 1,000 ranks in a row are read by nobody: neighbours are joined.
function rankList(names) {
  if (!names.length) return note("No rank was restarted.");
  const byRole = new Map();
  for (const name of names) {
    const cut = String(name).lastIndexOf("/");
    const role = cut < 0 ? String(name) : name.slice(0, cut);
    if (!byRole.has(role)) byRole.set(role, []);
    if (cut >= 0) byRole.get(role).push(Number(name.slice(cut + 1)));
  }
  return el("ul", { class: "ranks", title: "Source: the job's journal" }, [...byRole].map(([role, ranks]) => el("li", null, user(role), ranks.length ? ` ${ranges(ranks)}` : "")));
}

function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const found = [];
  for (const number of sorted) {
    const last = found[found.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([from, to]) => (from === to ? String(from) : `${from}-${to}`)).join(", ");
}

function logs(found) {
  const list = Array.isArray(found) ? found : found ? [found] : [];
  if (!list.length) return note("No log lines were kept. ", unrecordedOf("log"));
  return list.map(({ rank, lines }) => el("div", { title: `Source: log of ${rank}` }, el("h4", null, user(rank)),
    el("pre", { class: "log", tabindex: "0", title: `Source: log of ${rank}` }, (lines || []).map((line) => [user(line), "\n"]))));
}

function stacks(found) {
  const list = Array.isArray(found) ? found : found ? [found] : [];
  if (!list.length) return note("No stacks were taken: they are, before a hung rank is restarted.");
  return list.map(({ rank, text }) => el("details", { open: list.length === 1 }, el("summary", null, user(rank)), el("pre", { class: "log", tabindex: "0", title: `Source: stacks of ${rank}` }, user(text))));
}

function showAround(incident) {
  const until = incident.until ?? page.end;
  if (innerWidth < 1000) closeDrawer(); // there it covers the page
  const margin = Math.max((until - incident.at) * 0.6, 1);
  setWindow(incident.at - margin, until + margin);
  document.getElementById("timeline").scrollIntoView({ block: "start" });
}
