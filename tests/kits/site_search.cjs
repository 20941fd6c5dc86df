// node site_search.cjs SITE, with a JSON list of questions on stdin: the documentation site's own search, without a browser.
// It loads the worker with which the built site searches, sends it what a page sends, and prints for each question the
// numbers of the first ten items of search.json, the best first.

const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const site = process.argv[2];
const folder = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readdirSync(folder).find((name) => /^search\.\w+\.min\.js$/.test(name));
const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3]; // kinds of messages

function query(input) {
  const filter = {
    input: { type: "operator", data: { operator: "and", operands: [] } },
    aggregation: { input: [{ type: "term", data: { field: "tags" } }] },
  };
  return { input, filter }; // the worker writes into it
}

let onReply;
const self = { postMessage: (reply) => onReply(reply) };
const globals = { self, console, Date, Intl, Math, Map, Set, Object, Array, RegExp, Promise, Symbol, Error, RangeError };
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), vm.createContext(globals));

function send(type, data, expected) {
  return new Promise((resolve, reject) => {
    onReply = (reply) => (reply.type === expected ? resolve(reply.data) : reject(new Error(`reply ${reply.type}`)));
    self.onmessage({ data: { type, data } });
  });
}

async function main() {
  await send(SETUP, JSON.parse(fs.readFileSync(path.join(site, "search.json"), "utf8")), READY);
  const answers = [];
  for (const input of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const result = await send(QUERY, query(input), RESULT);
    answers.push(result.items.map((item) => item.id));
  }
  process.stdout.write(JSON.stringify(answers));
}

main();
