// Answers without a server: a worker runs kvcalc's own code; one question at a time, and none that nobody waits for.

import { showProgress } from "./dom.js";
import { remembered, remember } from "./remember.js";
import { startWorker } from "./start.js";

const waiting = [];
let worker;
let asked;
let visited = false;
let demos;

function failed(what) {
  return new Response(JSON.stringify({ error: { what, hint: "kvcalc on the command line needs no browser" } }), { status: 500 });
}

function started() {
  if (worker) return worker;
  worker = startWorker();
  worker.addEventListener("message", ({ data }) => {
    if (data.stage !== undefined) { showProgress(data.stage); return; }
    if (data.told !== undefined) { if (!asked?.signal?.aborted) asked?.live?.(JSON.parse(data.told).so_far); return; }
    answered(new Response(data.text, { status: data.status }));
  });
  worker.addEventListener("error", () => {
    showProgress("");
    worker = null;
    answered(failed("the calculator could not be loaded"));
  });
  return worker;
}

function answered(response) {
  const question = asked;
  asked = null;
  question?.resolve(response);
  keepForNextVisit();
  next();
}

function next() {
  while (!asked && waiting.length) {
    const question = waiting.shift();
    if (question.signal?.aborted) continue;
    asked = question;
    started().postMessage(question.message);
  }
}

// After the first answer, so that it need not share the line.
function keepForNextVisit() {
  if (visited) return;
  visited = true;
  const kept = navigator.serviceWorker?.register(new URL("../visits.js", import.meta.url)).then(() => navigator.serviceWorker.ready);
  kept?.then(() => { document.documentElement.dataset.kept = "true"; }).catch(() => {});
}

if (typeof WebAssembly !== "undefined") started();

// Demonstrations that need NumPy are carried as answers.
async function carried(asked) {
  if (!asked.startsWith("demo/")) return null;
  demos ??= fetch(new URL("demos.json", import.meta.url)).then((response) => response.json());
  const answer = (await demos)[asked];
  return answer ? new Response(JSON.stringify(answer)) : null;
}

export async function reach(address, { signal, body = null, live = null } = {}) {
  if (typeof WebAssembly === "undefined") return failed("this browser has no WebAssembly, which the calculator runs on");
  const [path, query = ""] = address.split("?");
  const name = path.replace("/api/", "");
  if (name === "catalogue") return fetch(new URL("catalogue.json", import.meta.url));
  const kept = (await carried(`${name}?${query}`)) ?? (body === null ? await remembered(address) : null);
  if (kept) { keepForNextVisit(); return kept; }
  const response = await computed({ name, query, body, live: live !== null }, signal, live);
  if (body === null) remember(address, response);
  return response;
}

// Nobody waits for it any more. One that takes long keeps the worker from all others, and cannot be interrupted but with it.
function giveUp(question) {
  if (asked !== question || !question.live) return;
  worker.terminate();
  worker = asked = null;
  next();
}

function computed(message, signal, live) {
  return new Promise((resolve, reject) => {
    const question = { message, signal, live, resolve };
    const left = () => { reject(new DOMException("nobody waits", "AbortError")); giveUp(question); };
    if (signal?.aborted) { left(); return; }
    signal?.addEventListener("abort", left, { once: true });
    waiting.push(question);
    next();
  });
}
