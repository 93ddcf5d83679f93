// What each lesson asks, its figures and the picture of a step; `w` are its words in the language chosen.

import { ask } from "../ask.js";
import { counted, figure } from "../explain.js";
import { h } from "../dom.js";
import { big, bytes, count, number, seconds } from "../units.js";

const cell = (kind, text, label) => h("span", { class: `cell ${kind}`, title: label }, text);
const lane = (name, ...inside) => h("div", { class: "lane" }, h("span", { class: "name" }, name), ...inside);

// Batches up to the ridge, where there is one, and a little beyond.
async function overBatches(fields, signal) {
  const around = { model: fields.model, gpu: fields.gpu, context: fields["demo-context"] };
  const roofline = await ask("roofline", { ...around, batch: "1" }, signal);
  const ridge = roofline.plateaus[0]?.compute_bound_batch ?? null;
  const last = ridge ? ridge * 2 : 1024;
  const batches = new Set(ridge ? [ridge] : []);
  for (let batch = 1; batch < last; batch *= 2) batches.add(batch);
  const sorted = [...batches].sort((one, other) => one - other).join(",");
  const [report, drawn] = await Promise.all([ask("decode", { ...around, batch: sorted }, signal), ask("roofline", { ...around, batch: sorted }, signal)]);
  return { ...report, ridge, charts: { main: drawn.charts.main } };
}

function time(kind, label, share, ...words) {
  const filled = h("i", { class: kind });
  filled.style.height = `${Math.max(0.5, 100 * share)}%`;
  return h("div", { class: "side" }, h("div", { class: "column" }, filled), h("b", {}, label), words.map((word) => h("span", {}, word)));
}

export const LESSONS = {
  memory: {
    fields: ["model", "gpu", "demo-context"],
    load: overBatches,
    steps: (report) => report.rows,
    figures: (report, w) => {
      const [one] = report.rows;
      return [figure(w.bytes, bytes(one.weight_bytes + one.kv_read_bytes), one.weight_bytes + one.kv_read_bytes, counted("weight_bytes + kv_read_bytes", w.bytesTold)),
        figure(w.flop, big(one.flop, "FLOP"), one.flop, counted("flop", w.flopTold)),
        figure(w.ridge, report.ridge === null ? w.never : count(report.ridge), report.ridge ?? "none", counted("compute_bound_batch", w.ridgeTold))];
    },
    step: (row, report, w) => {
      const memory = row.shares.memory * row.ideal_s;
      const compute = row.shares.compute * row.ideal_s;
      return [h("p", {}, w.at(row)),
        h("div", { class: "sides" }, time("kept", w.reads, row.shares.memory, bytes(row.weight_bytes + row.kv_read_bytes), seconds(memory)),
          time("computed", w.multiplies, row.shares.compute, big(row.flop, "FLOP"), seconds(compute))),
        h("p", { class: "quiet" }, w.idle(Math.min(row.shares.memory, row.shares.compute), row.limiter))];
    },
  },
  "kv-cache": {
    asks: { "demo-prompt": "prompt", "demo-output": "output-tokens", seed: "seed" },
    steps: (report) => report.steps,
    figures: (report, w, common) => [
      figure(w.without, count(report.projections_without), report.projections_without, counted("projections_without", w.withoutTold)),
      figure(w.with, count(report.projections_with), report.projections_with, counted("projections_with", w.withTold)),
      figure(w.same, report.same_tokens ? common.yes : common.no, report.same_tokens, counted("same_tokens", w.sameTold)),
      figure(w.bytes, bytes(report.cache_bytes), report.cache_bytes, counted("cache_bytes", w.bytesTold))],
    step: (step, report, w) => {
      const row = (computed, kept) => [...Array.from({ length: kept }, () => cell("kept", "", w.read)), ...Array.from({ length: computed }, () => cell("computed", "", w.computed))];
      return [h("p", {}, w.at(step, report)),
        lane(w.laneWithout, row(step.projections_without, 0), h("b", {}, w.counts(step.projections_without, null))),
        lane(w.laneWith, row(step.projections_with, step.past_tokens), h("b", {}, w.counts(step.projections_with, step.past_tokens))),
        h("p", { class: "quiet" }, Object.entries(step.shapes).map(([name, shape]) => `${name} [${shape.join(", ")}]`).join("  ·  "))];
    },
  },
  paging: {
    asks: { "demo-block": "block-size" },
    steps: (report) => report.sharing,
    figures: (report, w) => [
      figure(w.reserved, number(report.reserved.mean_running_requests), report.reserved.mean_running_requests, counted("reserved.mean_running_requests", w.reservedTold), w.holds(report.reserved.useful_share)),
      figure(w.paged, number(report.paged.mean_running_requests), report.paged.mean_running_requests, counted("paged.mean_running_requests", w.pagedTold), w.holds(report.paged.useful_share)),
      figure(w.more, `${number(report.more_requests)} ×`, report.more_requests, counted("more_requests", w.moreTold))],
    step: (step, report, w, place) => {
      const owners = new Map();
      for (const line of step.tables) for (const block of line) owners.set(block, (owners.get(block) ?? 0) + 1);
      return [h("p", {}, w.at(step, place)),
        step.tables.map((line, index) => lane(w.sequence(index + 1), line.map((block) => cell(owners.get(block) > 1 ? "kept" : "computed", String(block), owners.get(block) > 1 ? w.shared : w.own)))),
        h("p", { class: "quiet" }, w.owners(step))];
    },
  },
  batching: {
    asks: { "demo-places": "places", "demo-requests": "requests" },
    steps: (report) => report.steps,
    figures: (report, w) => [
      figure(w.static, count(report.static.steps), report.static.steps, counted("static.steps", w.staticTold), w.used(report.static.useful_share)),
      figure(w.continuous, count(report.continuous.steps), report.continuous.steps, counted("continuous.steps", w.continuousTold), w.used(report.continuous.useful_share)),
      figure(w.faster, `${number(report.speedup)} ×`, report.speedup, counted("speedup", w.fasterTold))],
    step: (step, report, w) => {
      const row = (held) => held.map((request) => (request < 0 ? cell("", "", w.empty) : cell("kept", String(request + 1), w.request(request + 1))));
      return [h("p", {}, w.at(step)), lane(w.kept, row(step.static)), lane(w.given, row(step.continuous))];
    },
  },
  speculate: {
    asks: { "demo-prompt": "prompt", "demo-output": "output-tokens", "demo-gamma": "gamma", seed: "seed" },
    steps: (report) => report.steps,
    figures: (report, w) => report.drafts.map((draft) => figure(w.draft(draft.name), w.passes(draft.target_passes), draft.target_passes, counted("target_passes", w.passesTold), w.gained(draft))),
    step: (step, report, w) => [h("p", {}, w.at(step)),
      lane(w.drafted, step.drafted.map((token, place) => cell(place < step.accepted.length ? "good" : "bad", String(token), place < step.accepted.length ? w.accepted : w.rejected))),
      lane(w.taken, step.emitted.map((token, place) => cell(place < step.accepted.length ? "good" : "own", String(token), place < step.accepted.length ? w.fromDraft : w.own)))],
  },
  drift: {
    asks: { seed: "seed" },
    steps: (report) => report.steps,
    figures: (report, w) => [figure(w.error, number(report.final_error), report.final_error, counted("final_error", w.errorTold)),
      figure(w.consistent, number(report.final_error_consistent), report.final_error_consistent, counted("final_error_consistent", w.consistentTold)),
      figure(w.less, `${number(report.reduction)} ×`, report.reduction, counted("reduction", w.lessTold))],
    step: (step, report, w) => [h("p", {}, w.at(step))],
  },
};
