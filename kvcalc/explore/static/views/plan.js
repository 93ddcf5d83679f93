// Plan: from traffic, limits and prices to what to rent, and the command that starts it.

import { ask, catalogue } from "../ask.js";
import { Chart } from "../chart.js";
import { commands, starts } from "../command.js";
import { fill, h, notes, section, table } from "../dom.js";
import { pick } from "../state.js";
import { big, count, number, percent, requestRate, seconds } from "../units.js";

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

// Replicas as boxes, in them the nodes that a scale-up link joins, in these a row for each pipeline stage with its GPUs; those that split
// every layer stand in one dashed box.
function diagram(option, links) {
  const { tensor_parallel: tensor, pipeline_parallel: pipeline, data_parallel: data, expert_parallel: expert } = option;
  const each = tensor * pipeline * data;
  const joined = links.scale_up?.gpus ?? each;
  const ranks = Array.from({ length: each }, (_, rank) => ({ rank, node: Math.floor(rank / joined), stage: Math.floor(rank / (tensor * data)), group: Math.floor(rank / tensor) }));
  const by = (found, key) => [...new Set(found.map((one) => one[key]))].map((value) => [value, found.filter((one) => one[key] === value)]);
  const cell = ({ rank }) => h("i", { class: "gpu", title: `GPU ${rank + 1}` }, String(rank + 1));
  const stage = ([number, inside]) => h("div", { class: "stage-row" }, pipeline > 1 ? h("span", { class: "quiet" }, `stage ${number + 1}`) : null,
    by(inside, "group").map(([, group]) => h("span", { class: "ranks" }, group.map(cell))));
  const node = ([number, inside]) => h("div", { class: "node" }, each > joined ? h("span", { class: "quiet" }, `node ${number + 1}`) : null, by(inside, "stage").map(stage));
  const drawn = Math.min(option.replicas, Math.max(1, Math.floor(MOST_DRAWN / by(ranks, "node").length)));
  const words = `${count(option.replicas)} ${option.replicas === 1 ? "replica" : "replicas"} of ${count(each)} ${option.gpu}: tensor ${tensor}, pipeline ${pipeline}, data ${data}, expert ${expert}`;
  const over = ({ name, bytes_per_s: rate }) => `${name}, ${big(rate, "B/s")} each way`;
  const joins = [
    tensor > 1 ? "a dashed box splits every layer" : "", expert > 1 ? `${count(expert)} GPUs of a stage share out the experts` : "",
    each > 1 && links.scale_up ? `inside a node ${over(links.scale_up)}` : "", each > joined && links.scale_out ? `between nodes ${over(links.scale_out)} for each GPU` : "",
  ].filter(Boolean);
  return h("div", { class: "layout", role: "img", "aria-label": [words, ...joins].join("; ") },
    Array.from({ length: drawn }, (_, place) => h("div", { class: "replica" }, h("span", { class: "quiet" }, `replica ${place + 1}`), by(ranks, "node").map(node))),
    option.replicas > drawn ? h("span", { class: "quiet" }, `and ${count(option.replicas - drawn)} more`) : null,
    h("p", { class: "quiet" }, words, option.prefill ? `; beside them ${count(option.prefill.replicas)} that only prefill` : ""),
    joins.length ? h("p", { class: "quiet" }, `${joins.join("; ")}.`) : null);
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
      const planned = await ask("plan", { ...pick(state, ...fields.filter((name) => name !== "cards")), gpu: state.cards, confirm: CONFIRMED }, signal);
      const { gpus } = await catalogue().catch(() => ({ gpus: [] })); // the plan stands without its links
      return { ...planned, links: gpus.find(({ name }) => name === planned.options[0]?.gpu)?.links ?? {} };
    } finally {
      this.button.disabled = false;
      this.button.textContent = "Plan";
    }
  }

  show(report) {
    this.verdict.className = `verdict ${report.options.length ? "good" : "bad"}`;
    this.verdict.textContent = report.answer;
    fill(this.options, report.options.length ? table("Options, best first", ["GPUs", "replicas", "layout", "$/h", "$/1M output tokens", "TTFT p95", "TPOT p95", "capacity, requests/s", "headroom", "binding limit"],
      report.options.map((option) => [`${count(option.gpus)} × ${option.gpu}`, count(option.replicas), layout(option), dollars(option.usd_per_hour), dollars(option.usd_per_million_output_tokens),
        seconds(option.ttft_p95_s), seconds(option.tpot_p95_s), number(option.capacity_requests_per_s), percent(option.margin), option.binds === "served_rate" ? "throughput" : option.binds || "–"])) : h("p", { class: "quiet" }, "Nothing meets the limits."));
    this.front.draw(report.charts.main);
    const [best] = report.options;
    this.line = best ? `${count(best.gpus)} × ${best.gpu} · ${requestRate(best.capacity_requests_per_s)}` : "Nothing meets the limits";
    fill(this.drawn, best ? section(`Layout of the best: ${layout(best)}`, diagram(best, report.links)) : null);
    fill(this.foot, best ? starts("Start it", best.command) : null, notes(report), commands([report.command]));
  }
}
