// The controls: one for each option of the command line that the page offers, by the option's own name.

import { h } from "./dom.js";
import { pick } from "./pick.js";

function steps(least, most) {
  const found = [];
  for (let power = 1; power <= most; power *= 2) {
    for (const value of [power, power * 1.5]) {
      if (Number.isInteger(value) && value >= least && value <= most) found.push(value);
    }
  }
  return found;
}

// Forms of acceptance that engines print, in place of a rate.
export const MEASURED = ["acceptance-by-position", "accepted-length", "draft-rate"];

export const FIELDS = {
  model: { label: "Model", kind: "pick", list: "models", hint: "catalogue name or Hugging Face id" },
  draft: { label: "Draft model", kind: "pick", list: "models", hint: "leave empty for the other methods" },
  gpu: { label: "Accelerator", kind: "pick", list: "gpus", hint: "catalogue name or alias" },
  gpus: { label: "GPUs", kind: "slider", values: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64] },
  batch: { label: "Batch, sequences", kind: "slider", values: steps(1, 1024) },
  context: { label: "Context, tokens", kind: "slider", values: steps(128, 1048576) },
  phase: { label: "Pass", kind: "select", values: ["decode", "prefill"], names: { decode: "decode, one token", prefill: "prefill, the whole context" } },
  weights: { label: "Weights", kind: "select", values: [""], group: "Formats", empty: "checkpoint's own" },
  "kv-dtype": { label: "KV cache", kind: "select", values: [""], group: "Formats", empty: "as the checkpoint" },
  activations: { label: "Activations", kind: "select", values: [""], group: "Formats", empty: "as the checkpoint" },
  "tensor-parallel": { label: "Tensor", kind: "number", group: "Parallelism" },
  "pipeline-parallel": { label: "Pipeline", kind: "number", group: "Parallelism" },
  "expert-parallel": { label: "Expert", kind: "number", group: "Parallelism" },
  "data-parallel": { label: "Data", kind: "number", group: "Parallelism" },
  engine: { label: "Engine", kind: "select", values: [""], empty: "default" },
  utilization: { label: "Memory utilization", kind: "text", group: "Limits of the engine" },
  "max-model-len": { label: "Max model length", kind: "text", group: "Limits of the engine" },
  estimate: { label: "Add calibrated estimates", kind: "check" },
  method: { label: "Method", kind: "select", values: [""], empty: "draft-model" },
  gamma: { label: "Drafted tokens (γ)", kind: "slider", values: ["", 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16], empty: "best" },
  acceptance: { label: "Acceptance (α)", kind: "slider", values: ["", ...Array.from({ length: 21 }, (_, index) => (index * 5) / 100)], empty: "as measured" },
  "acceptance-by-position": { label: "By position, of all drafts", kind: "text", hint: "0.543,0.357,0.264 as vLLM prints it", group: "Acceptance as measured" },
  "accepted-length": { label: "Tokens per pass, bonus token included", kind: "text", hint: "2.16", group: "Acceptance as measured" },
  "draft-rate": { label: "Accepted over drafted tokens", kind: "text", hint: "0.388", group: "Acceptance as measured" },
  device: { label: "Device", kind: "pick", list: "gpus", several: true, hint: "in llama.cpp's order: a card, or its memory as 24GiB; several with commas" },
  "host-memory": { label: "Host memory", kind: "text", hint: "64GiB" },
  host: { label: "Host memory modules", kind: "text", hint: "ddr5-5600x2: kind, speed, channels; or a processor" },
  used: { label: "Taken by other programs", kind: "text", hint: "3GiB of the first device" },
  recipe: { label: "Weights", kind: "select", values: [""], empty: "checkpoint's own", asks: "weights" },
  "gpu-layers": { label: "Layers on devices (-ngl)", kind: "slider", values: ["", ...Array.from({ length: 129 }, (_, index) => index)], empty: "best" },
  "n-cpu-moe": { label: "Layers with experts on the host", kind: "slider", values: ["", ...Array.from({ length: 129 }, (_, index) => index)], empty: "best" },
  "tensor-split": { label: "Shares of the devices (-ts)", kind: "text", hint: "3,1" },
  "cache-type-k": { label: "Keys of the cache", kind: "select", values: ["", "f16", "q8_0", "q5_1", "q4_0"], group: "Cache", empty: "f16" },
  "cache-type-v": { label: "Values of the cache", kind: "select", values: ["", "f16", "q8_0", "q5_1", "q4_0"], group: "Cache", empty: "f16" },
  parallel: { label: "Sequences (-np)", kind: "slider", values: ["", 1, 2, 4, 8], empty: "1" },
  cards: { label: "Accelerators to choose from", kind: "pick", list: "gpus", several: true, hint: "h100-sxm,h200", asks: "gpu" },
  price: { label: "Dollars per GPU-hour", kind: "text", hint: "h100-sxm=2.5,h200=3.2; without prices GPUs are counted" },
  rate: { label: "Requests per second", kind: "slider", values: [0.1, 0.2, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128] },
  requests: { label: "Requests", kind: "slider", values: [10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
  prompt: { label: "Prompt tokens", kind: "text", hint: "512, uniform:128-2048, lognormal:1020,0.9" },
  "output-tokens": { label: "Output tokens", kind: "text", hint: "200, uniform:50-400, lognormal:200,0.9" },
  "step-times": { label: "Step time", kind: "select", values: ["ideal", "serial", "estimate"], names: { ideal: "bound", serial: "without overlap", estimate: "estimate, by calibration" } },
  seed: { label: "Seed", kind: "number" },
  slo: { label: "Limits", kind: "text", hint: "ttft_p95=1s,tpot_p95=50ms" },
  language: { label: "Language", kind: "select", values: ["en", "ja"], names: { en: "English", ja: "日本語" } },
  demo: { label: "Lesson", kind: "select", values: ["memory", "kv-cache", "paging", "batching", "speculate", "drift"],
    names: { memory: "Why decode waits for memory", "kv-cache": "The KV cache", paging: "Blocks and sharing", batching: "Batching", speculate: "Draft and verify", drift: "Drift" } },
  "demo-context": { label: "Context, tokens", kind: "slider", values: steps(128, 32768) },
  "demo-places": { label: "Slots of a batch", kind: "slider", values: [1, 2, 3, 4, 6, 8, 12, 16] },
  "demo-requests": { label: "Requests", kind: "slider", values: [4, 8, 12, 16, 24, 32, 48, 64, 80] },
  "demo-prompt": { label: "Prompt tokens", kind: "slider", values: steps(1, 32) },
  "demo-output": { label: "Tokens to make", kind: "slider", values: steps(2, 64) },
  "demo-gamma": { label: "Drafted tokens (γ)", kind: "slider", values: [1, 2, 3, 4, 5, 6, 7, 8] },
  "demo-block": { label: "Tokens of a block", kind: "slider", values: [1, 2, 4, 8, 16, 32, 64, 128] },
};

export const DEFAULTS = {
  view: "size", units: "GiB", phase: "decode", model: "llama3.1-8b", gpu: "h100-sxm", gpus: "1", batch: "8", context: "8192", weights: "",
  "kv-dtype": "", activations: "", "tensor-parallel": "", "pipeline-parallel": "", "expert-parallel": "",
  "data-parallel": "", engine: "", utilization: "", "max-model-len": "", estimate: "true", draft: "", method: "",
  gamma: "", acceptance: "0.7", "acceptance-by-position": "", "accepted-length": "", "draft-rate": "", rate: "4", requests: "200", prompt: "lognormal:1020,0.9", "output-tokens": "200", seed: "0", "step-times": "ideal",
  device: "rtx-4090", "host-memory": "64GiB", host: "ddr5-5600x2", used: "", recipe: "q4_k_m", "gpu-layers": "", "n-cpu-moe": "",
  "tensor-split": "", "cache-type-k": "", "cache-type-v": "", parallel: "", cards: "h100-sxm,h200", price: "",
  slo: "ttft_p95=1s,tpot_p95=50ms", demo: "memory", language: "en", "demo-context": "128", "demo-places": "4", "demo-requests": "16", "demo-prompt": "3", "demo-output": "16", "demo-gamma": "4",
  "demo-block": "16",
};

// Offers the names that the server knows, in the controls that there are and in those made later.
export function offer(choices) {
  for (const [name, values] of Object.entries({ ...choices, recipe: choices.weights })) {
    FIELDS[name].values = ["", ...values];
    const list = document.getElementById(name);
    if (!list) continue;
    const known = new Set([...list.options].map((option) => option.value));
    list.append(...values.filter((value) => !known.has(value)).map((value) => h("option", { value }, value)));
  }
}

function nearest(values, text) {
  if (text === "" && values[0] === "") return 0;
  const wanted = Number(text);
  let best = values[0] === "" ? 1 : 0;
  values.forEach((value, place) => {
    if (value !== "" && Math.abs(Math.log((value + 1e-9) / (wanted + 1e-9))) < Math.abs(Math.log((values[best] + 1e-9) / (wanted + 1e-9)))) best = place;
  });
  return best;
}

const BUILD = {
  pick,
  text(name, field, value, changed) {
    return [h("input", { id: name, name, value, spellcheck: "false", onchange: (event) => changed(name, event.target.value) })];
  },
  number(name, field, value, changed) {
    return [h("input", { id: name, name, value, inputmode: "numeric", placeholder: "auto", onchange: (event) => changed(name, event.target.value) })];
  },
  check(name, field, value, changed) {
    const box = h("input", { id: name, name, type: "checkbox", onchange: (event) => changed(name, String(event.target.checked)) });
    box.checked = value === "true";
    return [box];
  },
  select(name, field, value, changed) {
    const options = field.values.includes(value) ? field.values : [...field.values, value];
    const list = h("select", { id: name, name, onchange: (event) => changed(name, event.target.value) },
      options.map((option) => h("option", { value: option }, field.names?.[option] ?? (option || field.empty))));
    list.value = value;
    return [list];
  },
  slider(name, field, value, changed) {
    const { values } = field;
    const exact = h("input", { id: name, name, value, class: "exact", inputmode: "decimal", placeholder: field.empty ?? "",
      onchange: (event) => { range.value = nearest(values, event.target.value); tell(event.target.value); changed(name, event.target.value); } });
    const range = h("input", { type: "range", id: `${name}-slider`, min: 0, max: values.length - 1, step: 1, value: nearest(values, value),
      "aria-label": `${field.label}, slider`, oninput: (event) => {
        const chosen = String(values[event.target.value]);
        exact.value = chosen;
        tell(chosen);
        changed(name, chosen);
      } });
    const tell = (shown) => range.setAttribute("aria-valuetext", shown || field.empty || "");
    tell(value);
    return [range, exact];
  },
};

function control(name, value, changed) {
  const field = FIELDS[name];
  const parts = BUILD[field.kind](name, field, value, changed);
  const main = parts.at(-1);
  const described = [field.hint && `${name}-hint`, `${name}-error`].filter(Boolean).join(" ");
  main.setAttribute("aria-describedby", described);
  return h("div", { class: `field ${field.kind}`, "data-field": name },
    h("label", { for: name }, field.label),
    h("div", { class: "inputs" }, parts),
    field.hint ? h("p", { class: "hint", id: `${name}-hint` }, field.hint) : null,
    h("p", { class: "error", id: `${name}-error`, role: "alert" }));
}

// The controls that there are, in the words of another language, or in their own again.
export function relabel(form, { labels = {}, hints = {}, names = {}, slider = "slider" } = {}) {
  for (const place of form.querySelectorAll("[data-field]")) {
    const name = place.dataset.field;
    const field = FIELDS[name];
    const label = labels[name] ?? field.label;
    place.querySelector("label").textContent = label;
    place.querySelector("[type=range]")?.setAttribute("aria-label", `${label}, ${slider}`);
    const hint = place.querySelector(".hint");
    if (hint) hint.textContent = hints[name] ?? field.hint;
    const said = names[name] ?? field.names;
    if (said) for (const option of place.querySelectorAll("option")) option.textContent = said[option.value] ?? option.value;
  }
}

export function controls(names, state, changed) {
  const groups = new Map();
  const found = [];
  for (const name of names) {
    const { group } = FIELDS[name];
    if (!group) {
      found.push(control(name, state[name], changed));
      continue;
    }
    if (!groups.has(group)) {
      const box = h("details", { class: "group" }, h("summary", {}, group));
      groups.set(group, box);
      found.push(box);
    }
    groups.get(group).append(control(name, state[name], changed));
    if (state[name] !== DEFAULTS[name]) groups.get(group).open = true;
  }
  return found;
}

// Beside its field, each name that may have been meant as a button; `take` sets a field.
export function showMistake(form, mistake, take) {
  clearMistakes(form);
  const asked = mistake.field || "-";
  const fields = [...form.querySelectorAll("[data-field]")];
  const field = fields.find(({ dataset }) => dataset.field === asked) ?? fields.find(({ dataset }) => FIELDS[dataset.field]?.asks === asked);
  if (!field) return false;
  const input = field.querySelector(".inputs > :last-child");
  input.setAttribute("aria-invalid", "true");
  const box = field.closest("details");
  if (box) box.open = true;
  const hint = mistake.hint ? `${mistake.message.endsWith("?") ? "" : ":"} ${mistake.hint}` : "";
  const meant = /did you mean (.+?)\?/.exec(mistake.hint ?? "")?.[1].split(" or ") ?? [];
  field.querySelector(".error").replaceChildren(`${mistake.message}${hint}`, ...meant.map((name) =>
    h("button", { type: "button", class: "apply", onclick: () => take(field.dataset.field, name) }, `Use ${name}`)));
  return true;
}

export function clearMistakes(form) {
  for (const input of form.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  for (const error of form.querySelectorAll(".error")) error.replaceChildren();
}
