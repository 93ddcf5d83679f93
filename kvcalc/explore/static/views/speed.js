// Speed: the roofline and the passes on it, the bound and the estimate over batch and context.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { figure } from "../explain.js";
import { fill, h, notes, section, table } from "../dom.js";
import { run } from "../state.js";
import { big, bytes, count, number, seconds, yes } from "../units.js";
import { Comparison } from "./compare.js";

export const title = "Speed";
export const fields = ["model", "gpu", "gpus", "context", "batch", "engine", "estimate", "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel"];

const sorted = (values) => [...new Set(values)].sort((one, other) => one - other);

export class View {
  constructor(app) {
    this.figures = h("div", { class: "figures" });
    this.verdict = h("p", { class: "verdict" });
    this.charts = { roofline: new Chart("roofline"), intensity: new Chart("intensity"), batch: new Chart("decode-batch"), context: new Chart("decode-context") };
    this.rows = h("div", {});
    this.foot = h("div", {});
    this.comparison = new Comparison(app);
    this.element = h("div", {}, this.verdict, this.figures,
      section("Roofline", h("div", { class: "charts" }, this.charts.roofline.element, this.charts.intensity.element)),
      section("Tokens per second", h("div", { class: "charts" }, this.charts.batch.element, this.charts.context.element), this.rows), this.comparison.element, this.foot);
  }

  async load(state, signal) {
    const point = { ...run(state, "gpu", "batch", "context", "engine"), estimate: state.estimate === "true" };
    const prompt = { ...run(state, "gpu", "engine"), batch: 1, prompt: state.context, estimate: point.estimate };
    const [now, prefill] = await Promise.all([ask("decode", point, signal), ask("prefill", prompt, signal)]);
    const batches = sorted([1, 4, 16, 64, 256, 1024, ...now.rows.map((row) => row.batch)]).join(",");
    const contexts = sorted([1024, 4096, 16384, 65536, ...now.rows.map((row) => row.context)]).join(",");
    const [overBatch, overContext, roofline] = await Promise.all([
      ask("decode", { ...point, batch: batches }, signal),
      ask("decode", { ...point, context: contexts }, signal),
      ask("roofline", { ...run(state, "gpu", "context", "engine"), batch: batches }, signal),
    ]);
    return { now, prefill, overBatch, overContext, roofline, point, prompt };
  }

  show({ now, prefill, overBatch, overContext, roofline, point, prompt }, state) {
    const [row] = now.rows;
    const [first] = prefill.rows;
    const decode = (quantity) => ({ report: "decode", fields: point, quantity });
    const filled = (quantity) => ({ report: "prefill", fields: prompt, quantity });
    const between = (found) => (found.estimate_s === null ? "" : `${seconds(found.estimate_low_s)} to ${seconds(found.estimate_high_s)}`);
    fill(this.figures,
      figure("Tokens/s (upper bound)", number(row.tokens_per_s), row.tokens_per_s, decode("tokens_per_s"), `${number(row.tokens_per_s_per_sequence)} per sequence`),
      figure("Decode step (lower bound)", seconds(row.ideal_s), row.ideal_s, decode("ideal_s"), `${seconds(row.serial_s)} without overlap`),
      row.estimate_s === null ? null : figure("Decode step (estimate)", seconds(row.estimate_s), row.estimate_s, decode("estimate_s"), between(row)),
      figure("Arithmetic intensity", `${number(row.intensity_flop_per_byte)} FLOP/B`, row.intensity_flop_per_byte, decode("intensity_flop_per_byte")),
      figure("KV cache read per step", bytes(row.kv_read_bytes), row.kv_read_bytes, decode("kv_read_bytes")),
      figure("Weights read per step", bytes(row.weight_bytes), row.weight_bytes, decode("weight_bytes")),
      figure(`TTFT, ${count(first.prompt)}-token prompt (lower bound)`, seconds(first.ideal_s), first.ideal_s, filled("ideal_s"), first.estimate_s === null ? "" : `estimate ${seconds(first.estimate_s)}, ${between(first)}`));
    const ridge = roofline.ridge_flop_per_byte[now.formats.activations];
    const where = ridge ? ` The ridge point of ${now.formats.activations} is at ${number(ridge)} FLOP/B.` : "";
    const [plateau] = roofline.plateaus;
    const bend = !plateau ? "" : plateau.compute_bound_batch ? ` Compute is the limit from batch ${count(plateau.compute_bound_batch)} on.` : " Decode stays memory-bound at every batch at this context.";
    this.verdict.className = `verdict ${row.fits ? "" : "bad"}`;
    this.verdict.textContent = `${now.model} on ${now.gpus} × ${now.gpu}: decode is limited by ${row.limiter}, prefill by ${first.limiter}.${where}${bend}${row.fits ? "" : " This batch does not fit in memory."}`;
    this.line = `${row.fits ? "" : "Does not fit · "}${number(row.tokens_per_s)} tokens/s · ${row.limiter}`;
    this.charts.roofline.draw(roofline.charts.main);
    this.charts.intensity.draw(roofline.charts.intensity);
    this.charts.batch.draw(overBatch.charts.main);
    this.charts.context.draw(overContext.charts.main);
    fill(this.rows, h("details", {}, h("summary", {}, "The numbers as a table"),
      table("Decoding over the batch", ["batch", "tokens/s", "step (lower bound)", "estimate", "FLOP/B", "limit", "fits"],
        overBatch.rows.map((found) => [count(found.batch), number(found.tokens_per_s), seconds(found.ideal_s), seconds(found.estimate_s),
          number(found.intensity_flop_per_byte), found.limiter, yes(found.fits)])),
      table("Ceilings", ["format", "dense peak", "ridge point"], Object.entries(roofline.peak_flop_per_s).map(([format, peak]) =>
        [format, big(peak, "FLOP/s"), `${number(roofline.ridge_flop_per_byte[format])} FLOP/B`]))));
    fill(this.foot, notes(now, prefill), commands([now.command, prefill.command, overBatch.command, overContext.command, roofline.command]));
    return this.comparison.update(state);
  }
}
