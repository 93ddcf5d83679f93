// kvcalc's own code on Python in WebAssembly, beside the page, so that the page never stands still.

import { loadPyodide } from "./python/pyodide.mjs";

const START = `
import sys
sys.path.insert(0, "/kvcalc")
from kvcalc.explore.here import answered
`;

const tell = (stage) => self.postMessage({ stage });

const at = (name) => new URL(name, import.meta.url);

async function inflated(name) {
  const response = await fetch(at(name));
  return new Response(response.body.pipeThrough(new DecompressionStream("gzip")));
}

// From a snapshot of Python with kvcalc loaded: only the files are missing in it.
async function resumed() {
  const files = inflated("kvcalc.bin").then((response) => response.json());
  const memory = inflated("snapshot.bin").then((response) => response.arrayBuffer());
  const python = await loadPyodide({ indexURL: at("python/").href, _loadSnapshot: memory });
  const made = new Set();
  for (const [name, text] of Object.entries(await files)) {
    const folder = name.slice(0, name.lastIndexOf("/"));
    if (!made.has(folder)) { python.FS.mkdirTree(folder); made.add(folder); }
    python.FS.writeFile(name, text);
  }
  return python;
}

async function fromNothing(carried) {
  const code = fetch(at("kvcalc.zip")).then((response) => response.arrayBuffer());
  const python = await loadPyodide({ indexURL: at("python/").href });
  if (carried.some((name) => name.endsWith(".whl"))) await python.loadPackage("numpy");
  tell("Loading kvcalc …");
  python.unpackArchive(await code, "zip", { extractDir: "/kvcalc" });
  python.runPython(START);
  return python;
}

async function start() {
  tell("Loading Python, about 20 MB on the first visit …");
  const carried = await fetch(at("carried.json")).then((response) => response.json());
  const whole = carried.includes("snapshot.bin") && typeof DecompressionStream !== "undefined" && !carried.some((name) => name.endsWith(".whl"));
  const python = await (whole ? resumed().catch(() => fromNothing(carried)) : fromNothing(carried));
  tell("Computing …");
  return python.globals.get("answered");
}

const ready = start();

self.addEventListener("message", async ({ data: { name, query, body } }) => {
  let reply;
  try {
    const answered = await ready;
    const [status, text] = answered(name, query, body ?? "").toJs();
    reply = { status, text };
  } catch (error) {
    const what = "the calculator could not be loaded, or ended";
    reply = { status: 500, text: JSON.stringify({ error: { what, hint: String(error.message ?? error).slice(-200) } }) };
  }
  tell("");
  self.postMessage(reply);
});
