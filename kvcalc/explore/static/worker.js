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

const carried = new URLSearchParams(self.name);

const inflated = ({ body, headers }) => (headers.has("X-Inflated") ? body : body.pipeThrough(new DecompressionStream("gzip")));

// As a former visit kept it, inflated (visits.js): read without the way through the service worker.
async function kept(name) {
  try {
    const response = await caches.match(at(name), { cacheName: `kvcalc-${carried.get("version")}` });
    return response?.headers.has("X-Inflated") ? response : null;
  } catch {
    return null; // in a frame that may keep nothing
  }
}

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

// From a snapshot of Python with kvcalc loaded: only the files are missing in it. Pyodide needs its size to start and its content only
// once WebAssembly is compiled, so it is read meanwhile.
async function resumed(pyodide, script, bytes) {
  const memory = new Uint8Array(bytes);
  const files = read(memory, script);
  const fsInit = async (FS) => mountTexts(FS, await files, HOME);
  return (await pyodide).loadPyodide({ indexURL: at("python/").href, _loadSnapshot: memory, fsInit });
}

// Fill the memory, and return kvcalc's files.
async function read(memory, script) {
  const names = ["snapshot.bin", "kvcalc.bin"];
  const [snapshot, texts] = await Promise.all(names.map(kept));
  if (snapshot && texts) {
    memory.set(new Uint8Array(await snapshot.arrayBuffer()));
    return texts.json();
  }
  const asked = names.map((name) => fetch(at(name)));
  await script; // which the compiler waits for
  const [files] = await Promise.all([
    asked[1].then((response) => new Response(inflated(response)).json()),
    asked[0].then((response) => pour(inflated(response), memory)),
  ]);
  return files;
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
