// Size: weights and cache against memory, for each engine; where it stops fitting.

import { ask } from "../ask.js";
import { memoryBar } from "../bar.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { figure } from "../explain.js";
import { fill, h, notes, section, table } from "../dom.js";
import { run } from "../state.js";
import { bytes, count, many, number, percent, yes } from "../units.js";
import { Comparison } from "./compare.js";

export const title = "Size";
export const fields = ["model", "gpu", "gpus", "context", "batch", "engine", "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel", "utilization", "max-model-len"];

const MOST_CONTEXT = 1e9;
const ENGINE = ["utilization", "max-model-len"];

// An engine may refuse what can be sized all the same.
function refused(mistake, signal) {
  if (signal.aborted || ["model", "gpu", "context", "batch"].includes(mistake.field)) throw mistake;
  return { mistake };
}

// The layout that would hold it, in the fields of the page and in words.
function layout(found) {
  const sizes = { "tensor-parallel": found.tensor, "pipeline-parallel": found.pipeline, "expert-parallel": found.expert, "data-parallel": found.data };
  const set = Object.fromEntries(Object.entries(sizes).map(([name, size]) => [name, size > 1 ? String(size) : ""]));
  const words = Object.entries(sizes).filter(([, size]) => size > 1).map(([name, size]) => `${name.replace("-parallel", "")} ${size}`);
  return { fields: { gpus: String(found.gpus), ...set }, words: `${count(found.gpus)}${words.length ? ` with ${words.join(", ")}` : ""}` };
}

// What a GPU's memory is made of, as the engine counts it; what is left to it beside the budget is said apart.
function budgetParts({ budget, reserved_kv_bytes: cache }) {
  const left = budget.kv_bytes_available - cache;
  return [["weights", budget.weight_bytes], ["draft", budget.draft_weight_bytes ?? 0], ["activations", budget.activation_bytes], ["overhead", budget.overhead_bytes],
    ["cache", cache], ["free", Math.max(0, left)], ["unused", left < 0 ? Math.max(0, budget.outside_bytes + left) : budget.outside_bytes]];
}

export class View {
  constructor(app) {
    this.app = app;
    this.figures = h("div", { class: "figures" });
    this.verdict = h("p", { class: "verdict" });
    this.budget = h("div", { class: "place", "data-chart": "fit" });
    this.memory = new Chart("memory");
    this.engines = h("div", {});
    this.foot = h("div", {});
    this.comparison = new Comparison(app);
    this.element = h("div", {}, this.verdict, this.figures, section("Memory per GPU", this.budget, this.memory.element),
      section("By engine", this.engines), this.comparison.element, this.foot);
  }

  async load(state, signal, early) {
    const asked = run(state, "context", "batch");
    const sized = ask("size", asked, signal);
    sized.then((size) => early(() => { this.showSize(size, asked); this.verdict.classList.add("waiting"); })).catch(() => {});
    const [size, found, engines] = await Promise.all([
      sized,
      state.gpu ? ask("fit", run(state, "gpu", "context", "batch", "engine", ...ENGINE), signal).catch((mistake) => refused(mistake, signal)) : null,
      state.gpu ? ask("engines", run(state, "gpu", "context", "batch", ...ENGINE), signal) : null,
    ]);
    const chosen = found?.mistake ? null : found;
    const longest = Math.min(MOST_CONTEXT, Math.max(chosen?.max_model_len ?? 0, size.context, 1024));
    const contexts = [];
    for (let tokens = 512; tokens < longest; tokens *= 2) contexts.push(tokens);
    const { batch } = size;
    const grid = state.gpu ? await ask("decode", { ...run(state, "gpu", "engine", ...ENGINE), context: [...contexts, longest].join(","),
      batch: [...new Set([1, batch, batch * 4])].join(",") }, signal).catch((mistake) => (refused(mistake, signal), null)) : null;
    return { size, chosen, engines, grid, asked, mistake: found?.mistake };
  }

  showSize(size, asked) {
    const explained = (quantity) => ({ report: "size", fields: asked, quantity });
    const { kv, weights, per_gpu: each } = size;
    fill(this.figures,
      figure("KV cache per token", bytes(kv.bytes_per_token), kv.bytes_per_token, explained("kv.bytes_per_token")),
      figure("KV cache per sequence", bytes(kv.bytes_per_sequence), kv.bytes_per_sequence, explained("kv.bytes_per_sequence")),
      figure("KV cache of the batch", bytes(kv.total_bytes), kv.total_bytes, explained("kv.total_bytes")),
      figure("Weights", bytes(weights.total_bytes), weights.total_bytes, explained("weights.total_bytes"), `${number(weights.parameters / 1e9)} billion parameters`),
      figure("KV cache per GPU", bytes(each.kv_bytes), each.kv_bytes, explained("per_gpu.kv_bytes")),
      figure("Weights per GPU", bytes(each.weight_bytes), each.weight_bytes, explained("per_gpu.weight_bytes")));
  }

  show({ size, chosen, engines, grid, asked }, state) {
    this.showSize(size, asked);
    const { kv, weights } = size;
    this.verdict.className = `verdict ${chosen ? (chosen.fits ? "good" : "bad") : ""}`;
    const better = chosen && !chosen.fits ? [chosen.practical, chosen.smallest].filter(Boolean).map(layout) : [];
    fill(this.verdict, chosen ? (chosen.fits
      ? `Fits: ${size.model} with ${count(size.batch)} × ${count(size.context)} tokens on ${chosen.gpus} × ${chosen.gpu} with ${chosen.engine}, at most ${many(chosen.max_batch, "such sequence")}.${chosen.assumed ? ` ${chosen.assumed[0].toUpperCase()}${chosen.assumed.slice(1)}.` : ""}`
      : `${size.model} does not fit on ${chosen.gpus} × ${chosen.gpu}: ${chosen.reason || "the cache is too small"}.${better.length ? "" : ` ${chosen.min_gpus_reason ?? ""}`}`)
      : state.gpu ? `Whether ${size.model} fits on ${state.gpu}${state.engine ? ` with ${state.engine}` : ""} is not known.` : `Choose an accelerator to see whether ${size.model} fits.`,
    better.filter(({ words }, place) => better.findIndex((each) => each.words === words) === place).map(({ words, fields: set }) =>
      h("button", { type: "button", class: "apply", onclick: () => this.app.apply(set) }, `It would on ${words}: use that`)));
    this.line = !chosen ? `Cache ${bytes(kv.total_bytes)} · weights ${bytes(weights.total_bytes)}`
      : chosen.fits ? `Fits ${count(chosen.max_batch)} · cache ${bytes(kv.total_bytes)}` : `Does not fit${better.length ? `: takes ${better[0].words}` : ""}`;
    this.drawBudget(chosen);
    this.memory.draw(grid?.charts.memory);
    const rows = (engines?.rows ?? []).map(({ engine, refused, fit }) => (refused
      ? [engine, h("td", { colspan: 6, class: "quiet" }, refused)]
      : [fit.engine, yes(fit.fits), bytes(fit.reserved_kv_bytes), bytes(fit.kv_bytes_available), count(fit.max_batch), count(fit.max_context), percent(fit.kv_headroom)]));
    fill(this.engines, rows.length ? table("Reserved and available KV cache by engine", ["engine", "fits", "reserved", "KV cache per GPU",
      "max sequences", "max context", "KV cache headroom"], rows) : h("p", { class: "quiet" }, "No accelerator is chosen."));
    fill(this.foot, notes(size, chosen), commands([size.command, chosen?.command, grid?.command]));
    return this.comparison.update(state);
  }

  drawBudget(chosen) {
    this.budget.hidden = !chosen?.budget;
    if (!chosen?.budget) return;
    const { budget } = chosen;
    this.budget.classList.toggle("over", !chosen.fits);
    fill(this.budget, h("h3", {}, `${chosen.gpu}, ${bytes(budget.memory_bytes)}`, h("span", { class: "quiet" }, ` ${chosen.engine} may use ${percent(budget.utilization)} of it`)),
      memoryBar(chosen.gpu, budgetParts(chosen), budget.memory_bytes));
  }
}
