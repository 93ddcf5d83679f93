// Plan: from traffic, limits and prices to what to rent, and the command that starts it.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands, starts } from "../command.js";
import { fill, h, notes, section, table } from "../dom.js";
import { pick } from "../state.js";
import { count, number, percent, seconds } from "../units.js";

export const title = "Plan";
// Options of each card that are simulated: as many as a page can wait for.
const CONFIRMED = 1;

export const fields = ["model", "cards", "price", "prompt", "output-tokens", "rate", "slo", "weights", "kv-dtype", "seed"];

function dollars(value) {
  return value === null || value === undefined ? "–" : `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

function layout(option) {
  const sizes = [["TP", option.tensor_parallel], ["PP", option.pipeline_parallel], ["EP", option.expert_parallel], ["DP", option.data_parallel]];
  return [option.engine, ...sizes.filter(([, size]) => size > 1).map(([name, size]) => `${name} ${size}`), option.weights].filter(Boolean).join(", ");
}

const MOST_DRAWN = 12;

// Replicas as boxes: a row for each pipeline stage, a square for each GPU; GPUs that share every layer stand together.
function diagram(option) {
  const { tensor_parallel: tensor, pipeline_parallel: pipeline, data_parallel: data } = option;
  const group = (first) => h("span", { class: "ranks" }, Array.from({ length: tensor }, (_, rank) => h("i", { class: "gpu", title: `GPU ${first + rank + 1}` }, String(first + rank + 1))));
  const stage = (place) => h("div", { class: "stage-row" }, pipeline > 1 ? h("span", { class: "quiet" }, `stage ${place + 1}`) : null,
    Array.from({ length: data }, (_, rank) => group((place * data + rank) * tensor)));
  const drawn = Math.min(option.replicas, MOST_DRAWN);
  const words = `${count(option.replicas)} ${option.replicas === 1 ? "replica" : "replicas"} of ${count(tensor * pipeline * data)} ${option.gpu}: tensor ${tensor}, pipeline ${pipeline}, data ${data}, expert ${option.expert_parallel}`;
  return h("div", { class: "layout", role: "img", "aria-label": words },
    Array.from({ length: drawn }, (_, place) => h("div", { class: "replica" }, h("span", { class: "quiet" }, `replica ${place + 1}`), Array.from({ length: pipeline }, (_stage, row) => stage(row)))),
    option.replicas > drawn ? h("span", { class: "quiet" }, `and ${count(option.replicas - drawn)} more`) : null,
    h("p", { class: "quiet" }, words, option.prefill ? `; beside them ${count(option.prefill.replicas)} that only prefill` : ""));
}

export class View {
  constructor(app) {
    this.button = h("button", { type: "button", id: "run-plan", class: "primary", onclick: () => app.changed({ now: true }) }, "Plan");
    this.verdict = h("p", { class: "verdict" });
    this.options = h("div", {});
    this.drawn = h("div", {});
    this.front = new Chart("plan");
    this.foot = h("div", {});
    this.element = h("div", {}, h("p", { class: "acts" }, this.button), this.verdict, section("Options", this.options, this.front.element), this.drawn, this.foot);
  }

  waits() {
    this.verdict.className = "verdict";
    this.verdict.textContent = "The controls have changed: plan again.";
    this.element.classList.add("stale");
  }

  async load(state, signal) {
    this.button.disabled = true;
    this.button.textContent = "Planning …";
    try {
      return await ask("plan", { ...pick(state, ...fields.filter((name) => name !== "cards")), gpu: state.cards, confirm: CONFIRMED }, signal);
    } finally {
      this.button.disabled = false;
      this.button.textContent = "Plan";
    }
  }

  show(report) {
    this.verdict.className = `verdict ${report.options.length ? "good" : "bad"}`;
    this.verdict.textContent = report.answer;
    fill(this.options, report.options.length ? table("The best first", ["GPUs", "replicas", "layout", "$/h", "$ a million out", "TTFT p95", "TPOT p95", "carries, requests/s", "left free", "binds"],
      report.options.map((option) => [`${count(option.gpus)} × ${option.gpu}`, count(option.replicas), layout(option), dollars(option.usd_per_hour), dollars(option.usd_per_million_output_tokens),
        seconds(option.ttft_p95_s), seconds(option.tpot_p95_s), number(option.capacity_requests_per_s), percent(option.margin), option.binds])) : h("p", { class: "quiet" }, "Nothing meets the limits."));
    this.front.draw(report.charts.main);
    const [best] = report.options;
    this.line = best ? `${count(best.gpus)} × ${best.gpu} · ${number(best.capacity_requests_per_s)} requests/s` : "Nothing meets the limits";
    fill(this.drawn, best ? section(`Layout of the best: ${layout(best)}`, diagram(best)) : null);
    fill(this.foot, best ? starts("Start it", best.command) : null, notes(report), commands([report.command]));
  }
}
