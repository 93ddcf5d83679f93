// The worker that computes: the page's head has begun one already, unless its host forbids scripts in a page.

// What the folder carries: its version, the size of its snapshot, and whether NumPy is there.
export const carried = new URLSearchParams(document.querySelector("meta[name=kvcalc-answers]").content);

function begin() {
  return new Worker(new URL("worker.js", import.meta.url), { type: "module", name: String(carried) });
}

let first = globalThis.begun ?? null;

// The one that is under way already, or another where that one has ended.
export function startWorker() {
  const worker = first ?? begin();
  first = null;
  return worker;
}
