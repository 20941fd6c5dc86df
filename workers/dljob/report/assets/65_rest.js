// The spec without values, the what-ifs, and what was not recorded.

function buildSpec() {
  const spec = page.data.spec;
  if (!spec || !Object.keys(spec).length) return [note("The spec was not recorded. ", unrecordedOf("spec"))];
  return [note("Values of env, envFrom, runtimeEnv, args and config are left out; their names stay."),
    el("div", { class: "spec", title: "Source: the job's spec, without values" }, Object.entries(spec).map(([key, value]) => specPart(key, value, 0)))];
}

const bare = (value) => value === null || typeof value !== "object" || !Object.keys(value).length;

function bareText(value) {
  if (value === null || value === undefined) return "left out";
  if (typeof value !== "object") return String(value);
  return Array.isArray(value) ? "[]" : "{}";
}

// Deep parts are built when they are opened: a spec may have a thousand lines.
function specPart(key, value, depth) {
  if (bare(value)) return el("div", { class: "spec-line" }, user(key, { class: "key" }), ": ", user(bareText(value), { class: "value" }));
  const name = (item, index) => (item && typeof item === "object" && item.name !== undefined ? String(item.name) : String(index));
  const entries = Array.isArray(value) ? value.map((item, index) => [name(item, index), item]) : Object.entries(value);
  if (Array.isArray(value) && value.every(bare)) return el("div", { class: "spec-line" }, user(key, { class: "key" }), ": ", user(value.map(bareText).join(", "), { class: "value" }));
  const box = el("details", null, el("summary", null, user(key, { class: "key" }), el("span", { class: "sub" }, ` ${plural(entries.length, "entry", "entries")}`)));
  const fill = () => {
    if (box.open && box.childElementCount === 1) box.append(el("div", { class: "spec-deep" }, entries.map(([inner, item]) => specPart(inner, item, depth + 1))));
  };
  box.addEventListener("toggle", fill);
  if (depth === 0 && key === "roles") {
    box.open = true;
    fill();
  }
  return box;
}

function buildWhatIfs() {
  const whatifs = page.data.whatifs;
  if (!whatifs) return [note("No what-ifs were computed. ", unrecordedOf("whatifs") || "Add --what-if to dljob report.")];
  if (!whatifs.length) return [note("No other rule was found that would have changed the goodput.")];
  const source = "the simulator: the same faults under the other rule";
  const most = Math.max(0.001, ...whatifs.map((one) => Math.abs(one.difference || 0) + spread(one)));
  return [note("The same faults, run through the simulator under another rule: what goodput would have been."),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What-ifs" }, el("table", { class: "whatifs" },
      el("thead", null, el("tr", null, ["rule", "goodput", "difference, in points", "", "the job's time"].map((cell) => el("th", { scope: "col" }, cell)))),
      el("tbody", null, whatifs.map((one) => el("tr", { title: `Source: ${source}` }, el("th", { scope: "row" }, user(one.rule, { class: "mono" })),
        el("td", { class: "number" }, figure(percent(one.goodput), source)),
        el("td", { class: "number" }, figure(`${(one.difference || 0) > 0 ? "+" : ""}${((one.difference || 0) * 100).toFixed(1)} \u00b1 ${(spread(one) * 100).toFixed(1)}`, source)),
        el("td", { class: "grow" }, differenceBar(one, most)),
        el("td", { class: "number" }, figure(duration(one.seconds), source))))))),
    typeof whatifs[0].measured === "number" ? note("Measured: ", figure(percent(whatifs[0].measured), "the job's ledger"), ". Predicted for the rules as they were: ", figure(percent(whatifs[0].unchanged), source), ".") : null];
}

function spread(one) {
  if (typeof one.uncertainty === "number") return one.uncertainty;
  return typeof one.low === "number" && typeof one.high === "number" ? (one.high - one.low) / 2 : 0;
}

function differenceBar(one, most) {
  const at = (value) => `${50 + (value / most) * 48}%`;
  const wide = (value) => `${(Math.abs(value) / most) * 48}%`;
  const value = one.difference || 0;
  const bar = el("span", { class: value < 0 ? "change worse" : "change better" });
  bar.style.left = at(Math.min(0, value));
  bar.style.width = wide(value);
  const whisker = el("span", { class: "whisker" });
  whisker.style.left = at(value - spread(one));
  whisker.style.width = wide(2 * spread(one));
  return el("div", { class: "change-track", "aria-hidden": "true" }, el("span", { class: "zero" }), bar, whisker);
}

// `unrecorded`: "part: why", or an object of them.
function unrecordedList() {
  const found = page.data.unrecorded || [];
  return Array.isArray(found) ? found.map(String) : Object.entries(found).map(([part, why]) => `${part}: ${why}`);
}

function unrecordedOf(part) {
  // "lanes, stages: why" is about two parts.
  const about = (line) => line.slice(0, line.indexOf(":")).split(", ");
  const list = unrecordedList();
  const found = list.find((line) => about(line).includes(part)) || list.find((line) => SAMPLE_PARTS.has(part) && about(line).includes("samples"));
  return found ? el("span", { title: "Source: what dljob report found" }, "Reason: ", user(found.slice(found.indexOf(":") + 1).trim()), ".") : null;
}

const SAMPLE_PARTS = new Set(["steps", "progress", "weights", "calls", "queues", "memory", "device"]);

function buildAbout() {
  const made = page.data.made || {};
  const job = page.data.job || {};
  const list = unrecordedList();
  return [el("dl", { class: "facts", title: "Source: dljob report" }, fact("Job", `${job.name} (${job.uid})`), fact("Page made", made.at ? `${stamp(made.at)} UTC` : "not told"), fact("By dljob", made.by || made.version || "not told"), fact("Format of the data", page.data.format ?? "not told")),
    list.length ? [el("h3", null, "Not recorded"), el("ul", { title: "Source: what dljob report found" }, list.map((line) => el("li", null, user(line))))] : note("All that this page can show was recorded.")];
}
