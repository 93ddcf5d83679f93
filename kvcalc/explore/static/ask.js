// Questions to this server, or to the calculator in this browser where there is none, and mistakes with their fields.

const here = document.querySelector("meta[name=kvcalc-answers]") ? import("./here.js") : null;

export class Mistake extends Error {
  constructor({ what, hint = "", field = "", again = false }) {
    super(what);
    this.hint = hint;
    this.field = field;
    this.again = again;
  }
}

const LINES = "application/x-ndjson";

const pastes = { config: "" };

export function pasteConfig(text) {
  pastes.config = text;
}

export function pastedConfig() {
  return pastes.config;
}

async function read(response) {
  let data;
  try {
    data = await response.json();
  } catch {
    throw new Mistake({ what: `the server answered ${response.status} without data` });
  }
  if (!response.ok) throw new Mistake(data.error ?? { what: `the server answered ${response.status}` });
  return data;
}

async function reach(address, options) {
  if (here) return (await here).reach(address, options);
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Mistake({ what: "the server does not answer", hint: "is kvcalc explore still running?", again: true });
  }
}

export function query(fields) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) found.set(name, String(value));
  }
  return found;
}

// Lines of a stream: what the answer has come to, told as it comes, and the answer.
async function readLines(response, live) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", answer = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (text + value).split("\n");
    text = lines.pop();
    for (const line of lines) {
      const told = JSON.parse(line);
      if (told.so_far) live(told.so_far);
      else answer = told;
    }
  }
  if (!answer || answer.error) throw new Mistake(answer?.error ?? { what: "the server ended before its answer" });
  return answer;
}

// With `live`, what a long question has come to is told to it until the answer is there.
export async function ask(report, fields, signal, live = null) {
  const asked = { ...fields };
  const options = { signal, ...(live && { live, headers: { Accept: LINES } }) };
  if ("model" in asked && pastes.config) {
    delete asked.model;
    Object.assign(options, { method: "POST", body: pastes.config, headers: { ...options.headers, "Content-Type": "application/json" } });
  }
  const response = await reach(`/api/${report}?${query(asked)}`, options);
  return response.headers.get("Content-Type")?.startsWith(LINES) ? readLines(response, live) : read(response);
}

export async function compare(sides, engine, signal) {
  const found = query({ engine });
  for (const side of sides) found.append("side", side);
  return read(await reach(`/api/compare?${found}`, { signal }));
}

export async function reconcile(log, fields) {
  const options = { method: "POST", body: log, headers: { "Content-Type": "text/plain" } };
  return read(await reach(`/api/reconcile?${query(fields)}`, options));
}

let known;

// One that failed is asked for again.
export function catalogue() {
  known ??= reach("/api/catalogue", {}).then(read).catch((mistake) => { known = null; throw mistake; });
  return known;
}
