// The worker that computes, begun before the rest of the page is read: Python takes longest to load.

// What the folder carries: its version, the size of its snapshot, and whether NumPy is there.
export const carried = new URLSearchParams(document.querySelector("meta[name=kvcalc-answers]").content);

function begin() {
  return new Worker(new URL("worker.js", import.meta.url), { type: "module", name: String(carried) });
}

let first = typeof WebAssembly === "undefined" ? null : begin();

// The one that is under way already, or another where that one has ended.
export function startWorker() {
  const worker = first ?? begin();
  first = null;
  return worker;
}
