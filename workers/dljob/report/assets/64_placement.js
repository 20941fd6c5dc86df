// Where units were: nodes with their devices and the shares of their bundles; beside it, where the plan had them.

// `plan` has nodes of its own, as a list or beside other things.
function placementOf() {
  const { nodes, plan } = page.data.placement || {};
  return page.data.placement ? { nodes, plan: Array.isArray(plan) ? plan : (plan || {}).nodes } : null;
}

const SHOWN = 24; // nodes drawn at first
const placementView = { planned: false, shown: SHOWN, text: "" };

function buildPlacement() {
  const placement = placementOf();
  if (!placement || !(placement.nodes || placement.plan)) return [note("Nobody recorded where units were. ", unrecordedOf("placement"))];
  const box = el("div");
  const draw = () => replace(box, nodeCards(draw));
  const filter = el("input", { id: "node-filter", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "node, unit or rank", value: placementView.text, oninput: (event) => {
    Object.assign(placementView, { text: event.target.value, shown: SHOWN });
    draw();
  } });
  const choice = el("select", { id: "placement-which", onchange: (event) => {
    Object.assign(placementView, { planned: event.target.value === "plan", shown: SHOWN });
    draw();
  } }, el("option", { value: "real", selected: !placementView.planned }, "where units were"), el("option", { value: "plan", selected: placementView.planned }, "as planned"));
  draw();
  return [el("div", { class: "controls" }, el("label", { for: "placement-which" }, "Show "), choice, el("label", { for: "node-filter" }, "Filter "), filter), el("p", { class: "note", title: "Source: the job's plan, and the reservations in its journal" }, difference(placement)), roleLegend(), box];
}

function unitNodes(nodes) {
  const found = new Map();
  for (const node of nodes || []) for (const bundle of node.bundles || []) found.set(bundle.unit, node.name);
  return found;
}

// A plan's nodes stand for any of their kind: each is compared with the real node that has most of its units.
function movedUnits(nodes, plan) {
  const real = unitNodes(nodes);
  const taken = new Set();
  const moved = [];
  for (const node of plan) {
    const units = [...new Set((node.bundles || []).map((bundle) => bundle.unit))];
    const counts = new Map();
    for (const unit of units) if (real.has(unit)) counts.set(real.get(unit), (counts.get(real.get(unit)) || 0) + 1);
    const best = [...counts].filter(([name]) => !taken.has(name)).sort((a, b) => b[1] - a[1])[0];
    if (best) taken.add(best[0]);
    for (const unit of units) if (!real.has(unit) || !best || real.get(unit) !== best[0]) moved.push([unit, real.get(unit)]);
  }
  return moved;
}

function difference({ nodes, plan }) {
  if (!plan || !plan.length) return ["The plan's nodes were not recorded. ", unrecordedOf("plan")];
  if (!nodes || !nodes.length) return "No unit had a node.";
  const moved = movedUnits(nodes, plan);
  if (!moved.length) return "Units shared nodes as the plan has it.";
  return [`${plural(moved.length, "unit was", "units were")} not where the plan had them: `,
    moved.slice(0, 6).map(([unit, node], index) => [index ? ", " : "", user(unit), node ? [" on ", user(node)] : " on no node"]), moved.length > 6 ? ", and more." : "."];
}

function roleLegend() {
  return el("ul", { class: "legend accounts" }, roleNames().slice(0, 24).map((name, index) => el("li", null, swatch(lineColour(index)), user(name))));
}

const unitRole = (bundle) => String((bundle.ranks || [])[0] || bundle.unit || "").replace(/\/[^/]*$/, "");

function nodeCards(again) {
  const { nodes, plan } = placementOf();
  const all = (placementView.planned ? plan : nodes) || [];
  const text = placementView.text.toLowerCase();
  const found = !text ? all : all.filter((node) => `${node.name} ${(node.bundles || []).map((bundle) => `${bundle.unit} ${(bundle.ranks || []).join(" ")}`).join(" ")}`.toLowerCase().includes(text));
  if (!found.length) return note(all.length ? "No node has these words." : "No unit had a node.");
  return [el("ul", { class: "nodes" }, found.slice(0, placementView.shown).map(nodeCard)),
    found.length > placementView.shown ? el("button", { type: "button", class: "tool", title: "Source: the nodes that the filter found", onclick: () => {
      placementView.shown += 192;
      again();
    } }, `Show more (${grouped(found.length - placementView.shown)} nodes left)`) : null];
}

const DEVICES = /gpu|npu|tpu|device|accelerator/i;

function nodeCard(node) {
  const bundles = node.bundles || [];
  const resources = Object.entries(node.resources || {}).filter(([, value]) => typeof value === "number" && value > 0);
  const source = placementView.planned ? "the job's plan" : "the job's journal: reservations that were held";
  const devices = resources.filter(([name]) => DEVICES.test(name) && !/memory/i.test(name));
  return el("li", { class: "node", title: `Source: ${source}` }, el("h4", null, user(node.name)),
    devices.map(([name, count]) => deviceGrid(name, count, bundles)),
    resources.filter(([name]) => !devices.some(([device]) => device === name) && bundles.some((bundle) => (bundle.shares || {})[name])).map(([name, whole]) => shareBar(name, whole, bundles)),
    resources.length ? null : note("resources not recorded"),
    el("div", { class: "units" }, unitGroups(bundles).map(({ text, role, of }) => el("span", { class: "unit", title: `${of.slice(0, 12).map((bundle) => `Unit ${bundle.unit}: ${rankText(bundle)}${shareText(bundle)}`).join("\n")}. Source: ${source}` },
      swatch(lineColour(Math.max(0, roleNames().indexOf(role)))), user(text)))));
}

// Units of one name and role are one entry: trainer/0-7.
function unitGroups(bundles) {
  const groups = new Map();
  for (const bundle of bundles) {
    const unit = String(bundle.unit);
    const cut = unit.lastIndexOf("/");
    const role = unitRole(bundle);
    const key = `${unit.slice(0, cut)} ${role}`;
    if (!groups.has(key)) groups.set(key, { name: cut < 0 ? unit : unit.slice(0, cut), role, numbers: [], of: [] });
    const group = groups.get(key);
    if (cut >= 0) group.numbers.push(Number(unit.slice(cut + 1)));
    group.of.push(bundle);
  }
  return [...groups.values()].map((group) => {
    const units = `${group.name}${group.numbers.length ? `/${ranges(group.numbers)}` : ""}`;
    return { text: group.role && group.role !== group.name ? `${units} (${group.role})` : units, role: group.role, of: group.of };
  });
}

const rankText = (bundle) => ((bundle.ranks || []).length ? `ranks ${bundle.ranks.slice(0, 16).join(", ")}` : "no ranks");
const shareText = (bundle) => Object.entries(bundle.shares || {}).map(([name, value]) => `, ${name} ${amount(name, value)}`).join("");
const amount = (name, value) => (/memory/i.test(name) ? bytes(value) : compact(value));

// Each device with who holds it: whole, or by parts of it.
function deviceGrid(name, count, bundles) {
  const cells = Array.from({ length: Math.min(64, Math.ceil(count)) }, () => []);
  let next = 0;
  for (const bundle of bundles) {
    const share = (bundle.shares || {})[name] || 0;
    const own = bundle.devices && bundle.devices.length ? bundle.devices : null;
    const wanted = own || Array.from({ length: Math.ceil(share - 1e-9) }, (_, i) => Math.floor(next + i));
    for (const index of wanted) if (cells[index] && share > 0) cells[index].push([bundle, Math.min(1, share / wanted.length)]);
    if (!own) next += share;
  }
  return el("div", { class: "devices", role: "img", "aria-label": visible(`${name}: ${cells.filter((cell) => cell.length).length} of ${count} in use`) },
    el("span", { class: "resource" }, user(name)),
    el("span", { class: "device-grid" }, cells.map((cell, index) => {
      const box = el("span", { class: "device", title: cell.length ? `${name} ${index}: ${cell.map(([bundle, share]) => `${bundle.unit} (${percent(share, 0)})`).join(", ")}` : `${name} ${index}: free` });
      for (const [bundle, share] of cell) {
        const part = el("span", { class: "part" });
        part.style.width = `${share * 100}%`;
        part.style.background = lineColour(Math.max(0, roleNames().indexOf(unitRole(bundle))));
        box.append(part);
      }
      return box;
    })));
}

function shareBar(name, whole, bundles) {
  const bar = el("span", { class: "share" });
  let used = 0;
  for (const bundle of bundles) {
    const value = (bundle.shares || {})[name] || 0;
    if (!value) continue;
    used += value;
    const part = el("span", { class: "part", title: `${bundle.unit}: ${name} ${amount(name, value)}` });
    part.style.width = `${Math.min(100, (value / whole) * 100)}%`;
    part.style.background = lineColour(Math.max(0, roleNames().indexOf(unitRole(bundle))));
    bar.append(part);
  }
  return el("div", { class: "resource-row" }, el("span", { class: "resource" }, user(name)), bar, el("span", { class: "resource-value" }, `${amount(name, used)} of ${amount(name, whole)}`));
}
