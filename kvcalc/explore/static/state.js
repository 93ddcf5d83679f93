// One state, kept in the page's address so that it can be shared.

import { DEFAULTS, MEASURED } from "./fields.js";

const MOST_SIDES = 3;
const LONGEST = 200;

export function readState() {
  const given = new URLSearchParams(window.location.search);
  const state = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    if (given.has(name)) state[name] = given.get(name).slice(0, LONGEST);
  }
  if (!given.has("language") && navigator.language.startsWith("ja")) state.language = "ja";
  if (state.draft && !given.has("method")) state.method = "";
  if (MEASURED.some((form) => state[form]) && !given.has("acceptance")) state.acceptance = "";
  state.sides = given.getAll("side").slice(0, MOST_SIDES);
  return state;
}

export function writeState(state) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (name !== "sides" && value !== DEFAULTS[name]) found.set(name, value);
  }
  for (const side of state.sides) found.append("side", side);
  document.getElementById("whole").href = `?${found}`;
  const embedded = new URLSearchParams(window.location.search).get("embed");
  if (embedded !== null) found.set("embed", embedded);
  const text = found.toString();
  window.history.replaceState(null, "", text ? `?${text}` : window.location.pathname);
}

export function roomForSides(state) {
  return state.sides.length < MOST_SIDES;
}

export function pick(state, ...names) {
  return Object.fromEntries(names.map((name) => [name, state[name]]));
}

const RUN = ["model", "gpus", "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel", "weights", "kv-dtype", "activations"];

export function run(state, ...more) {
  return pick(state, ...RUN, ...more);
}
