// The header: what happened, why, and what to do; then the figures.

const GOOD = new Set(["Succeeded", "Running"]);
const BAD = new Set(["Failed"]);

function phaseKind(phase) {
  if (phase === "Succeeded") return "good";
  if (phase === "Failed") return "bad";
  return phase === "Running" ? "busy" : "calm";
}

// `dljob why` as it prints: a heading, the cause with its title, evidence and the rest, "next:".
const TITLES = ["first cause:", "last failure:", "stands still:"];

function causeParts(lines) {
  const starts = (prefix) => lines.findIndex((line) => line.startsWith(prefix));
  const title = TITLES.find((prefix) => starts(prefix) >= 0) || "last failure:";
  const cause = starts(title);
  const next = starts("next:");
  const indented = (from) => {
    const found = [];
    for (let i = from + 1; i < lines.length && /^\s/.test(lines[i]); i += 1) found.push(lines[i].trim());
    return found;
  };
  return {
    title: title[0].toUpperCase() + title.slice(1, -1),
    cause: cause < 0 ? "Nothing failed." : lines[cause].slice(title.length).trim(),
    evidence: lines.filter((line) => /^\s*evidence:/.test(line)).map((line) => line.trim().slice(9).trim()),
    next: next < 0 ? [] : [lines[next].slice(5).trim(), ...indented(next)],
    rest: lines,
  };
}

function buildHeader() {
  const job = page.data.job || {};
  const lines = job.cause || [];
  const { title, cause, evidence, next, rest } = causeParts(lines);
  return [
    el("div", { class: `verdict ${phaseKind(job.phase)}` },
      el("p", { class: "phase", title: "Source: the job's status" }, user(job.phase || "Unknown", { class: "badge" }),
        user(job.reason || ""), job.message ? [": ", user(job.message)] : null),
      (job.stalls || []).map((stall) => el("p", { class: "stall", role: "alert", title: "Source: the job's status, stalls" },
        user(stall.hung ? "Hung: " : "Stands still: "), user(stall.sentence))),
      el("div", { class: "cause" },
        el("h3", null, title),
        el("p", { class: "cause-line", title: "Source: dljob why" }, user(cause)),
        evidence.length ? el("ul", { class: "evidence", title: "Source: dljob why" }, evidence.map((line) => el("li", null, user(line)))) : null),
      next.length ? el("div", { class: "next" }, el("h3", null, "What to do next"),
        el("p", { title: "Source: dljob why" }, user(next[0])),
        next.slice(1).map((line) => el("pre", { class: "command", title: "Source: dljob why" }, user(line)))) : null,
      rest.length ? el("details", null, el("summary", null, "All that dljob why says"),
        el("pre", { class: "log", title: "Source: dljob why" }, rest.map((line) => [user(line), "\n"]))) : null),
    el("dl", { class: "tiles" }, tiles(job)),
  ];
}

function tiles(job) {
  const ledger = page.data.ledger;
  const goodput = job.goodput ?? (ledger ? ledger.goodput : null);
  const processes = job.processes ?? (ledger ? ledger.processes : null);
  const restarts = Object.entries(job.restarts || {}).filter(([, count]) => count > 0);
  const all = restarts.reduce((sum, [, count]) => sum + count, 0);
  const started = seconds(job.start ?? job.startTime);
  const faults = (page.data.incidents || []).length;
  const lost = (page.data.incidents || []).reduce((sum, incident) => sum + (incident.lostSteps || 0), 0);
  const told = (page.data.incidents || []).some((incident) => typeof incident.lostSteps === "number");
  const devices = job.deviceSeconds > 0 ? job.deviceSeconds : null;
  return [
    tile("Goodput", goodput === null || goodput === undefined ? "-" : percent(goodput),
      goodput === null || goodput === undefined ? "no ledger was recorded" : "of all ranks' time was work that counts", "the job's ledger, account productive"),
    tile("Time", started === null ? "-" : duration(job.seconds ?? page.end - page.start), started === null ? "not started" : `since ${stamp(started)} UTC`, "the job's status"),
    tile(devices ? "Device-hours" : "Process-hours", hours(devices ?? (ledger ? ledger.seconds * ledger.processes : null)),
      devices ? "devices reserved, by hour" : "no devices: ranks by hour", "the ledger's time, and the spec's devices a rank"),
    tile("Ranks", processes === null || processes === undefined ? "-" : grouped(processes), plural(roleNames().length, "role"), "the job's plan"),
    tile("Restarts", grouped(all), restarts.length ? restarts.map(([level, count]) => `${count} ${levelName(level)}`).join(", ") : "none", "the job's status, restarts by level"),
    tile("Steps lost", told || !faults ? grouped(lost) : "-", told || !faults ? plural(faults, "incident") : `${plural(faults, "incident")}; not recorded`, "the incidents' journal records"),
  ];
}

function hours(value) {
  if (value === null || value === undefined) return "-";
  return value >= 360000 ? grouped(value / 3600) : compact(value / 3600);
}

const levelName = (level) => level.replace(/_/g, " ").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();

function tile(name, value, detail, source) {
  return el("div", { class: "tile", title: `Source: ${source}` }, el("dt", null, name), el("dd", { class: "value" }, value), el("dd", { class: "detail" }, user(detail)));
}
