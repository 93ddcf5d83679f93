// Speculate: the speed-up over batch and acceptance, the break-even line, the best draft length.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { counted, figure } from "../explain.js";
import { fill, h, notes, section, table } from "../dom.js";
import { MEASURED } from "../fields.js";
import { run } from "../state.js";
import { bytes, count, number, percent, seconds, yes } from "../units.js";

export const title = "Speculate";
export const fields = ["model", "gpu", "gpus", "method", "draft", "gamma", "acceptance", "batch", "context", "engine", ...MEASURED, "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel"];

// A draft model and a method without one exclude each other, and so do the forms of acceptance: the later choice stands.
export function settle(state, name) {
  if (name === "draft" && state.draft && state.method && state.method !== "eagle" && state.method !== "mtp" && state.method !== "medusa") state.method = "";
  if (name === "method" && ["ngram", "layer-skip"].includes(state.method)) state.draft = "";
  const forms = ["acceptance", ...MEASURED];
  if (forms.includes(name)) {
    for (const form of forms) if (form !== name && state[name]) state[form] = "";
    if (forms.every((form) => !state[form])) state.acceptance = "0.8";
  }
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
    const asked = run(state, "gpu", "draft", "method", "gamma", "acceptance", ...MEASURED, "batch", "context", "engine");
    return { report: await ask("speculate", asked, signal), asked };
  }

  show({ report, asked }) {
    const explained = (quantity) => ({ report: "speculate", fields: asked, quantity });
    const [row] = report.rows;
    const pays = report.speedup > 1;
    const { by_context: [limit] } = report;
    const from = limit.pays === "never" ? "It never pays at this context." : `It pays ${limit.pays}${limit.break_even_batch ? `, until batch ${count(limit.break_even_batch)}` : ""}.`;
    this.verdict.className = `verdict ${pays && row.fits ? "good" : "bad"}`;
    const named = `${report.model} on ${report.gpus} × ${report.gpu}`;
    this.verdict.textContent = !row.fits ? `${named} does not fit: this needs ${bytes(row.memory_needed_bytes)} of a GPU's ${bytes(report.memory_bytes)}.` : `${named}: speculation ${pays ? "pays" : "does not pay"}, ${number(report.speedup)} times plain decoding. ${from}`;
    fill(this.figures,
      figure("Speed-up", `${number(report.speedup)} ×`, report.speedup, explained("speedup"), `${number(report.serial_speedup)} × operator after operator`),
      figure("Tokens of a pass", number(report.expected_tokens_per_pass), report.expected_tokens_per_pass, explained("expected_tokens_per_pass")),
      figure("Break-even acceptance", report.break_even_acceptance === null ? "none" : number(report.break_even_acceptance), report.break_even_acceptance, report.break_even_acceptance === null ? counted("break_even_acceptance", "No acceptance makes a pass worth its time.") : explained("break_even_acceptance")),
      figure("Best γ", count(report.best_gamma), report.best_gamma, explained("best_gamma")),
      figure("Break-even batch", report.break_even_batch === null ? "none" : count(report.break_even_batch), report.break_even_batch, report.break_even_batch === null ? counted("break_even_batch", "There is no last batch at which it pays: it still does at the largest that is searched, 131,072.") : explained("break_even_batch"), `pays ${limit.pays}`),
      figure("Tokens/s at most", number(row.tokens_per_s), row.tokens_per_s, explained("tokens_per_s"), `plain ${number(row.plain_tokens_per_s)}`),
      figure("Verification", `${number(row.verify_ratio)} × plain`, row.verify_ratio, explained("verify_ratio"), seconds(row.verify_s)),
      figure("A draft's step", `${number(row.draft_ratio)} × plain`, row.draft_ratio, explained("draft_ratio"), seconds(row.draft_s)),
      figure("Memory it adds", bytes(report.memory.total_bytes), report.memory.total_bytes, explained("memory.total_bytes"), row.fits ? "fits" : "does not fit"));
    this.map.draw(report.charts.main);
    fill(this.tables,
      table("By draft length", ["γ", "tokens of a pass", "speed-up", "break-even acceptance"], report.by_gamma.map((found) =>
        [count(found.gamma), number(found.expected_tokens_per_pass), found.gamma === report.best_gamma ? h("strong", {}, `${number(found.speedup)} ★`) : number(found.speedup),
          found.break_even_acceptance === null ? "none" : percent(found.break_even_acceptance)])),
      table("Rules that people quote", ["rule", "it says", "right here", "why"], report.rules.map((rule) =>
        [rule.name, rule.speedup === null ? (rule.pays ? "pays" : "does not pay") : `${number(rule.speedup)} ×`, yes(rule.agrees), rule.why])));
    fill(this.foot, notes(report), commands([report.command]));
  }
}
