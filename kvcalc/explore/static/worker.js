// kvcalc's own code on Python in WebAssembly, beside the page, so that the page never stands still.

import { loadPyodide } from "./python/pyodide.mjs";

const START = `
import sys
sys.path.insert(0, "/kvcalc")
from kvcalc.explore.here import answered
`;

const tell = (stage) => self.postMessage({ stage });

async function start() {
  tell("Loading Python, about 14 MB on the first visit …");
  const code = fetch(new URL("kvcalc.zip", import.meta.url)).then((response) => response.arrayBuffer());
  const carried = fetch(new URL("carried.json", import.meta.url)).then((response) => response.json());
  const python = await loadPyodide({ indexURL: new URL("python/", import.meta.url).href });
  if ((await carried).length) await python.loadPackage("numpy");
  tell("Loading kvcalc …");
  python.unpackArchive(await code, "zip", { extractDir: "/kvcalc" });
  python.runPython(START);
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
