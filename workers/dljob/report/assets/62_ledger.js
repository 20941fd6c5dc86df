// The waterfall of the ledger: from all ranks' time, account by account, down to the work that counts. It sums to 100 %.

const ledgerView = { role: "" };

function buildLedger() {
  const ledger = page.data.ledger;
  if (!ledger || !ledger.accounts) return [note("There is no ledger. ", unrecordedOf("ledger"))];
  const roles = (ledger.roles || []).filter((role) => role.accounts);
  const box = el("div");
  const choice = el("select", { id: "ledger-role", onchange: (event) => {
    ledgerView.role = event.target.value;
    replace(box, waterfall());
  } }, el("option", { value: "" }, "all roles"), roles.map((role) => el("option", { value: role.name, selected: role.name === ledgerView.role }, role.name)));
  replace(box, waterfall());
  return [el("p", { class: "controls" }, el("label", { for: "ledger-role" }, "Time of the ranks of "), choice), box];
}

function waterfall() {
  const ledger = page.data.ledger;
  const role = (ledger.roles || []).find((one) => one.name === ledgerView.role);
  const accounts = Object.entries((role || ledger).accounts || {}).filter(([name, value]) => value > 0 && name !== "spare");
  const order = (name) => {
    const index = page.accounts.indexOf(name);
    return name === "productive" ? 1e9 : index < 0 ? 1e8 : index;
  };
  accounts.sort((a, b) => order(a[0]) - order(b[0]));
  if (!accounts.length) return note("No rank has spent any time yet.");
  const sum = accounts.reduce((total, [, value]) => total + value, 0);
  const shown = tenths(accounts.map(([, value]) => value));
  const source = "the job's ledger (docs: The goodput ledger)";
  let left = 100;
  const rows = accounts.map(([name, value], index) => {
    const share = (value / sum) * 100;
    left -= share;
    const bar = el("div", { class: "fall" });
    bar.style.marginLeft = `${Math.max(0, Math.min(99.7, name === "productive" ? 0 : left))}%`;
    bar.style.width = `${Math.max(0.3, share)}%`;
    bar.style.background = accountColour(name);
    return el("tr", { class: name === "productive" ? "kept" : "" },
      el("th", { scope: "row", title: KNOWN_ACCOUNTS[name] || name }, swatch(accountColour(name)), user(name), el("span", { class: "sub meaning" }, KNOWN_ACCOUNTS[name] || "")),
      el("td", { class: "grow" }, bar), el("td", { class: "number" }, figure(`${(shown[index] / 10).toFixed(1)} %`, source)),
      el("td", { class: "number" }, figure(processTime(value), source)));
  });
  const spare = ((role || ledger).accounts || {}).spare;
  return [el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ledger" }, el("table", { class: "waterfall" },
    el("thead", null, el("tr", null, ["account", el("span", { class: "wide-only" }, "from all time, down to work"), "share", "process time"].map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", null, rows),
    el("tfoot", null, el("tr", null, el("th", { scope: "row" }, "sum"), el("td"), el("td", { class: "number" }, figure("100.0 %", source)), el("td", { class: "number" }, figure(processTime(sum), source)))))),
  busyNote(role ? [role] : ledger.roles || []),
  spare ? note(figure(processTime(spare), source), " of spare processes are counted apart: they are not ranks.") : null];
}

// Productive, but waiting: beside the accounts, which stay whole.
function busyNote(roles) {
  const known = roles.filter((role) => role.busy && typeof role.busy.share === "number");
  if (!known.length) return null;
  return el("ul", { class: "busy" }, known.map((role) => {
    const waits = Object.entries(role.busy.waited || {}).filter(([, share]) => share >= 0.0005);
    return el("li", { class: "note" }, user(role.name), ": busy ", figure(percent(role.busy.share), "the ranks' own clocks: calls served, and waits"),
      waits.length ? [" of its time; waited for ", user(waits.map(([what, share]) => `${what} ${percent(share)}`).join(", "))] : " of its time");
  }));
}

function processTime(value) {
  return value >= 36000 ? `${grouped(value / 3600)} h` : value >= 3600 ? `${(value / 3600).toFixed(1)} h` : duration(value);
}
