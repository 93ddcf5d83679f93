// Speculate: the speed-up over batch and acceptance, the break-even line, the best draft length.

import { ask, catalogue, pastedConfig } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { counted, figure } from "../explain.js";
import { fill, h, notes, section, table } from "../dom.js";
import { MEASURED } from "../fields.js";
import { run, writeState } from "../state.js";
import { bytes, count, number, percent, seconds, yes } from "../units.js";

export const title = "Speculate";
export const fields = ["model", "gpu", "gpus", "method", "draft", "gamma", "acceptance", "batch", "context", "engine", ...MEASURED, "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel"];

// What was chosen for a model that names neither draft nor method; another model gets a choice of its own.
let chosen = { draft: "", method: "" };

// A model opens with its smallest relative as draft; one that has none drafts from its own text.
async function choose(state) {
  if (state.draft || state.method) return;
  const names = pastedConfig() ? [] : (await catalogue()).models;
  const wanted = state.model.trim().toLowerCase();
  const model = names.find(({ name, aliases }) => name === wanted || aliases.some((alias) => alias.toLowerCase() === wanted));
  chosen = model?.draft ? { draft: model.draft, method: "" } : { draft: "", method: "ngram" };
  Object.assign(state, chosen);
  for (const name of ["draft", "method"]) document.getElementById(name).value = state[name];
  writeState(state);
}

// A draft model and a method without one exclude each other, and so do the forms of acceptance: the later choice stands.
export function settle(state, name) {
  if (name === "model" && state.draft === chosen.draft && state.method === chosen.method) Object.assign(state, { draft: "", method: "" });
  if (name === "draft" && state.draft && state.method && state.method !== "eagle" && state.method !== "mtp" && state.method !== "medusa") state.method = "";
  if (name === "method" && ["ngram", "layer-skip"].includes(state.method)) state.draft = "";
  const forms = ["acceptance", ...MEASURED];
  if (forms.includes(name)) {
    for (const form of forms) if (form !== name && state[name]) state[form] = "";
    if (forms.every((form) => !state[form])) state.acceptance = "0.7";
  }
}

// At which of the batches that fit it pays.
function paying(limit) {
  const fits = limit.largest_fitting_batch;
  if (!fits) return "No batch fits at this context.";
  const ranges = limit.paying.filter(({ first_batch: first }) => first <= fits)
    .map(({ first_batch: first, last_batch: last }) => [first, Math.min(last ?? fits, fits)]);
  if (!ranges.length) return `It pays at no batch that fits (up to ${count(fits)}).`;
  if (ranges.length === 1 && ranges[0][0] === 1 && ranges[0][1] === fits) return `It pays up to the largest batch that fits, ${count(fits)}.`;
  return `It pays at batch ${ranges.map(([first, last]) => (first === last ? count(first) : `${count(first)} to ${count(last)}`)).join(", ")}; ${count(fits)} is the largest that fits.`;
}

export class View {
  constructor() {
    this.figures = h("div", { class: "figures" });
    this.verdict = h("p", { class: "verdict" });
    this.map = new Chart("speculate");
    this.tables = h("div", {});
    this.foot = h("div", {});
    this.element = h("div", {}, this.verdict, this.figures, section("Where it pays", this.map.element), section("Draft length and rules", this.tables), this.foot);
  }

  async load(state, signal) {
    await choose(state);
    const asked = run(state, "gpu", "draft", "method", "gamma", "acceptance", ...MEASURED, "batch", "context", "engine");
    return { report: await ask("speculate", asked, signal), asked };
  }

  show({ report, asked }) {
    const explained = (quantity) => ({ report: "speculate", fields: asked, quantity });
    const [row] = report.rows;
    const pays = report.speedup > 1;
    const { by_context: [limit] } = report;
    const from = paying(limit);
    this.verdict.className = `verdict ${pays && row.fits ? "good" : "bad"}`;
    const named = `${report.model} on ${report.gpus} × ${report.gpu}`;
    this.verdict.textContent = !row.fits ? `${named} does not fit: it needs ${bytes(row.memory_needed_bytes)} per GPU, which has ${bytes(report.memory_bytes)}.` : `${named}: speculation ${pays ? "pays" : "does not pay"}, ${number(report.speedup)} times plain decoding. ${from}`;
    fill(this.figures,
      figure("Speed-up", `${number(report.speedup)} ×`, report.speedup, explained("speedup"), `${number(report.serial_speedup)} × without overlap`),
      figure("Tokens per pass", number(report.expected_tokens_per_pass), report.expected_tokens_per_pass, explained("expected_tokens_per_pass")),
      figure("Break-even acceptance", report.break_even_acceptance === null ? "none" : number(report.break_even_acceptance), report.break_even_acceptance, report.break_even_acceptance === null ? counted("break_even_acceptance", "No acceptance makes a pass worth its time.") : explained("break_even_acceptance")),
      figure("Best γ", count(report.best_gamma), report.best_gamma, explained("best_gamma")),
      figure("Break-even batch", report.break_even_batch === null ? "none" : count(report.break_even_batch), report.break_even_batch, report.break_even_batch === null ? counted("break_even_batch", "There is no batch beyond which it stops paying, of batches up to 131,072, whether they fit or not.") : explained("break_even_batch"), limit.largest_fitting_batch ? `${count(limit.largest_fitting_batch)} is the largest that fits` : "none fits"),
      figure("Tokens/s (upper bound)", number(row.tokens_per_s), row.tokens_per_s, explained("tokens_per_s"), `plain ${number(row.plain_tokens_per_s)}`),
      figure("Verification", `${number(row.verify_ratio)} × plain`, row.verify_ratio, explained("verify_ratio"), seconds(row.verify_s)),
      figure("Draft step", `${number(row.draft_ratio)} × plain`, row.draft_ratio, explained("draft_ratio"), seconds(row.draft_s)),
      figure("Added memory", bytes(report.memory.total_bytes), report.memory.total_bytes, explained("memory.total_bytes"), row.fits ? "fits" : "does not fit"));
    this.line = row.fits ? `${pays ? "Pays" : "Does not pay"} · ${number(report.speedup)} × · ${number(row.tokens_per_s)} tokens/s` : "Does not fit";
    this.map.draw(report.charts.main);
    fill(this.tables,
      table("By draft length", ["γ", "tokens per pass", "speed-up", "break-even acceptance"], report.by_gamma.map((found) =>
        [count(found.gamma), number(found.expected_tokens_per_pass), found.gamma === report.best_gamma ? h("strong", {}, `${number(found.speedup)} ★`) : number(found.speedup),
          found.break_even_acceptance === null ? "none" : percent(found.break_even_acceptance)])),
      table("Rules of thumb", ["rule", "predicts", "right here", "why"], report.rules.map((rule) =>
        [rule.name, rule.speedup === null ? (rule.pays ? "pays" : "does not pay") : `${number(rule.speedup)} ×`, yes(rule.agrees), rule.why])));
    fill(this.foot, notes(report), commands([report.command]));
  }
}
