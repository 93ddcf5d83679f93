// kvcalc's own code on Python in WebAssembly, beside the page, so that the page never stands still.

import { mountTexts } from "./files.js";

const HOME = "/kvcalc";
const START = `
import sys
sys.path.insert(0, "${HOME}")
from kvcalc.explore.here import answered
`;

const tell = (stage) => self.postMessage({ stage });

const at = (name) => new URL(name, import.meta.url);

const inflated = (response) => response.body.pipeThrough(new DecompressionStream("gzip"));

// Piece by piece as it arrives.
async function pour(stream, memory) {
  const reader = stream.getReader();
  for (let place = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    memory.set(value, place);
    place += value.length;
  }
}

// From a snapshot of Python with kvcalc loaded: only the files are missing in it. Pyodide needs its size to start and its content
// only once WebAssembly is compiled, so it is unpacked meanwhile: after Pyodide's script, which the compiler waits for.
async function resumed(pyodide, script, bytes) {
  const asked = ["snapshot.bin", "kvcalc.bin"].map((name) => fetch(at(name)));
  const memory = new Uint8Array(bytes);
  const unpacked = script.then(() => Promise.all([
    asked[0].then((response) => pour(inflated(response), memory)),
    asked[1].then((response) => new Response(inflated(response)).json()),
  ]));
  const fsInit = async (FS) => mountTexts(FS, (await unpacked)[1], HOME);
  return (await pyodide).loadPyodide({ indexURL: at("python/").href, _loadSnapshot: memory, fsInit });
}

async function fromNothing(pyodide, numpy) {
  const code = fetch(at("kvcalc.zip")).then((response) => response.arrayBuffer());
  const { loadPyodide } = await pyodide;
  const python = await loadPyodide({ indexURL: at("python/").href });
  if (numpy) await python.loadPackage("numpy");
  tell("Loading kvcalc …");
  python.unpackArchive(await code, "zip", { extractDir: HOME });
  python.runPython(START);
  return python;
}

async function start() {
  tell("Loading Python, about 15 MB on the first visit …");
  const carried = new URLSearchParams(self.name);
  const bytes = Number(carried.get("snapshot")), numpy = carried.has("numpy");
  const pyodide = import("./python/pyodide.mjs");
  const script = import("./python/pyodide.asm.mjs"); // which pyodide.mjs asks for, once it is there itself
  const whole = bytes && !numpy && typeof DecompressionStream !== "undefined";
  const python = await (whole ? resumed(pyodide, script, bytes).catch(() => fromNothing(pyodide, numpy)) : fromNothing(pyodide, numpy));
  tell("Computing …");
  return python.globals.get("answered");
}

const ready = start();

self.addEventListener("message", async ({ data: { name, query, body, live } }) => {
  let reply;
  try {
    const answered = await ready;
    const [status, text] = answered(name, query, body ?? "", live ? (told) => self.postMessage({ told }) : undefined).toJs();
    reply = { status, text };
  } catch (error) {
    const what = "the calculator could not be loaded, or ended";
    reply = { status: 500, text: JSON.stringify({ error: { what, hint: String(error.message ?? error).slice(-200) } }) };
  }
  tell("");
  self.postMessage(reply);
});
