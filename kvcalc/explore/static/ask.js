// Questions to this server, or to the calculator in this browser where there is none, and mistakes with their fields.

const here = document.querySelector("meta[name=kvcalc-answers]") ? import("./here.js") : null;

export class Mistake extends Error {
  constructor({ what, hint = "", field = "" }) {
    super(what);
    this.hint = hint;
    this.field = field;
  }
}

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
    throw new Mistake({ what: "the server does not answer", hint: "is kvcalc explore still running?" });
  }
}

export function query(fields) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== "" && value !== null && value !== undefined && value !== false) found.set(name, String(value));
  }
  return found;
}

export async function ask(report, fields, signal) {
  const asked = { ...fields };
  const options = { signal };
  if ("model" in asked && pastes.config) {
    delete asked.model;
    Object.assign(options, { method: "POST", body: pastes.config, headers: { "Content-Type": "application/json" } });
  }
  return read(await reach(`/api/${report}?${query(asked)}`, options));
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

export function catalogue() {
  known ??= reach("/api/catalogue", {}).then(read);
  return known;
}
