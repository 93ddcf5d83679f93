// Serve: a simulated run, its batch, cache and latencies over time, played back.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { counted, figure } from "../explain.js";
import { fill, h, notes, section, table } from "../dom.js";
import { run } from "../state.js";
import { count, many, number, percent, seconds } from "../units.js";

export const title = "Serve";
export const fields = ["model", "gpu", "gpus", "rate", "requests", "prompt", "output-tokens", "step-times", "slo", "seed", "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel", "utilization", "max-model-len"];

const LATENCIES = { ttft_s: "time to first token", tpot_s: "time per output token", inter_token_s: "between tokens", e2e_s: "to the last token", queue_s: "waiting" };
const PLAY_MS = 60;

export class View {
  constructor(app) {
    this.app = app;
    this.figures = h("div", { class: "figures" });
    this.verdict = h("p", { class: "verdict" });
    this.button = h("button", { type: "button", id: "run", class: "primary", onclick: () => this.runOrStop() }, "Run the simulation");
    this.chart = new Chart("simulate");
    this.bars = h("div", { class: "bars" });
    this.time = h("input", { type: "range", id: "time", min: 0, max: 0, value: 0, oninput: () => this.at(Number(this.time.value)) });
    this.play = h("button", { type: "button", id: "play", onclick: () => this.toggle() }, "Play");
    this.table = h("div", {});
    this.foot = h("div", {});
    this.element = h("div", {}, h("p", { class: "acts" }, this.button), this.verdict, this.figures,
      section("The run", h("div", { class: "player" }, this.play, h("label", { for: "time", class: "sr-only" }, "Time"), this.time), this.bars),
      section("Over time", this.chart.element), section("Latencies", this.table), this.foot);
  }

  waits() {
    this.verdict.className = "verdict";
    this.verdict.textContent = "The controls have changed: run the simulation again.";
    this.element.classList.add("stale");
  }

  runOrStop() {
    if (!this.computing) { this.app.changed({ now: true }); return; }
    this.app.stop.abort();
    this.stop();
    this.verdict.className = "verdict";
    this.verdict.textContent = "Stopped: run the simulation again.";
    this.element.classList.add("stale");
  }

  // The run is played while it is computed.
  async load(state, signal, early) {
    const asked = run(state, "gpu", "rate", "requests", "prompt", "output-tokens", "step-times", "slo", "seed", "utilization", "max-model-len");
    const whole = Number(state.requests);
    this.stop();
    this.computing = signal;
    this.button.textContent = "Stop";
    try {
      return await ask("simulate", asked, signal, (soFar) => early(() => this.showSoFar(soFar, whole)));
    } finally {
      if (this.computing === signal) {
        this.computing = null;
        this.button.textContent = "Run the simulation";
      }
    }
  }

  showSoFar({ finished_requests: finished, series }, whole) {
    this.verdict.className = "verdict waiting";
    this.verdict.textContent = `${count(finished)} of ${count(whole)} requests are answered so far; the rest is being computed.`;
    this.played(series);
    if (this.began === this.computing) return;
    this.began = this.computing;
    for (const former of [this.figures, this.table, this.foot]) fill(former);
    this.chart.draw();
    this.element.classList.remove("stale");
    this.at(0);
    this.toggle();
  }

  // Puts a series under the player, which goes on from where it was in time.
  played(series) {
    const at = this.timer ? this.series[Number(this.time.value)]?.start_s ?? 0 : null;
    this.series = series;
    this.time.max = Math.max(0, series.length - 1);
    this.most = { running: Math.max(1, ...series.map((row) => row.running_requests)), waiting: Math.max(1, ...series.map((row) => row.waiting_requests)) };
    if (at === null) return false;
    this.at(Math.max(0, series.findLastIndex((row) => row.start_s <= at)));
    return true;
  }

  show(report) {
    const { summary } = report;
    this.verdict.className = `verdict ${summary.slo_share === null ? "" : summary.slo_share >= 0.95 ? "good" : "bad"}`;
    this.verdict.textContent = `${report.model} on ${report.gpus} × ${report.gpu}: ${many(summary.requests, "request")} answered in ${seconds(summary.makespan_s)}, ${many(summary.preemptions, "preemption")}${summary.refused_requests ? `, ${count(summary.refused_requests)} refused` : ""}`
      + (summary.slo_share === null ? "." : `; ${percent(summary.slo_share)} met every limit.`);
    fill(this.figures,
      figure("TTFT, p95", seconds(summary.ttft_s.p95), summary.ttft_s.p95, counted("ttft_s.p95", "95% of the requests had waited at most this long, from their arrival to the end of the step that gave their first token.")),
      figure("TPOT, p95", seconds(summary.tpot_s.p95), summary.tpot_s.p95, counted("tpot_s.p95", "95% of the requests had at most this time from their first token to their last, over the number of tokens after the first; of requests with two tokens or more.")),
      figure("Output tokens/s", number(summary.output_tokens_per_s), summary.output_tokens_per_s, counted("output_tokens_per_s", `Tokens generated over the makespan, which is ${seconds(summary.makespan_s)}.`)),
      figure("Running sequences, mean", number(summary.mean_running_requests), summary.mean_running_requests, counted("mean_running_requests", "Sequences of a replica that are being computed, mean over the makespan."), `at most ${count(summary.most_running_requests)}`),
      figure("KV cache in use, peak", percent(summary.cache_peak_share), summary.cache_peak_share, counted("cache_peak_share", "The most blocks that had an owner at once, over the blocks that can be used.")),
      figure("Engine busy", percent(summary.busy_share), summary.busy_share, counted("busy_share", "The share of the makespan in which steps ran, mean over replicas.")));
    this.line = `TTFT ${seconds(summary.ttft_s.p95)} · TPOT ${seconds(summary.tpot_s.p95)} (p95)`;
    this.chart.draw(report.charts.main);
    fill(this.table, table("Latencies over all requests", ["", "p50", "p90", "p95", "p99", "mean"], Object.entries(LATENCIES).map(([name, words]) =>
      [words, ...["p50", "p90", "p95", "p99", "mean"].map((part) => seconds(summary[name][part]))])));
    fill(this.foot, notes(report), commands([report.command]));
    if (!this.played(report.series)) this.at(Math.floor(this.series.length / 2));
  }

  at(place) {
    const row = this.series?.[place];
    if (!row) { fill(this.bars); return; }
    this.time.value = place;
    this.time.setAttribute("aria-valuetext", seconds(row.start_s));
    const bar = (label, share, shown) => {
      const meter = h("meter", { min: 0, max: 1, "aria-label": label });
      meter.value = share;
      return h("div", { class: "bar" }, h("span", {}, label), meter, h("b", {}, shown));
    };
    fill(this.bars,
      h("p", {}, `At ${seconds(row.start_s)} of ${seconds(this.series.at(-1).end_s)}`),
      bar("running", row.running_requests / this.most.running, number(row.running_requests)),
      // who waits and what a first token took are known only once that has ended
      this.computing ? null : bar("waiting", row.waiting_requests / this.most.waiting, number(row.waiting_requests)),
      bar("KV cache in use", row.cache_used_share, percent(row.cache_used_share)),
      h("p", { class: "quiet" }, `${this.computing || row.ttft_s === null ? "" : `TTFT ${seconds(row.ttft_s)}, then `}one token every ${seconds(row.inter_token_s)}; ${number(row.output_tokens_per_s)} tokens/s`));
  }

  toggle() {
    if (this.timer) { this.stop(); return; }
    this.play.textContent = "Pause";
    if (Number(this.time.value) >= Number(this.time.max)) this.at(0);
    this.timer = setInterval(() => {
      const next = Number(this.time.value) + 1;
      if (next > Number(this.time.max) && this.computing && this.element.isConnected) return; // more is to come
      if (next > Number(this.time.max) || !this.element.isConnected) { this.stop(); return; }
      this.at(next);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }
}
