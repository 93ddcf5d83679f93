// Local: a GGUF on one's own machine; what lies on which device, how fast it can be, and the line that starts it.

import { ask } from "../ask.js";
import { memoryBar } from "../bar.js";
import { commands, starts } from "../command.js";
import { fill, h, notes, section } from "../dom.js";
import { counted, figure } from "../explain.js";
import { pick } from "../state.js";
import { bytes, count, number } from "../units.js";

export const title = "Local";
export const fields = ["model", "recipe", "device", "host-memory", "host", "used", "context", "gpu-layers", "n-cpu-moe", "tensor-split",
  "parallel", "cache-type-k", "cache-type-v"];

const PARTS = [["weight_bytes", "weights"], ["context_bytes", "context"], ["compute_bytes", "compute"], ["overhead_bytes", "driver"], ["used_bytes", "others"]];

// One device or the host: a bar of its memory, and its layers as blocks.
function place(found) {
  const memory = found.memory_bytes;
  const taken = PARTS.reduce((sum, [name]) => sum + (found[name] ?? 0), 0);
  const parts = [...PARTS.map(([name, kind]) => [kind, found[name] ?? 0]), ["free", Math.max(0, (memory ?? 0) - taken)]];
  const told = `${bytes(taken)}${memory ? ` of ${bytes(memory)}` : ""}`;
  const own = found.layers - found.output_layers - found.mtp_layers; // the model's own, as the answer counts them
  const layers = [...Array.from({ length: own }, () => h("i", { class: "block" })),
    ...Array.from({ length: found.expert_layers }, () => h("i", { class: "block experts" }))];
  const layered = (size) => `${count(size)} ${size === 1 ? "layer" : "layers"}`;
  const words = [layered(own), found.expert_layers ? `experts of ${layered(found.expert_layers)}` : ""].filter(Boolean).join(", ");
  return h("div", { class: `place ${found.fits ? "" : "over"}` },
    h("h3", {}, found.name, h("span", { class: "quiet" }, ` ${told}${found.fits ? "" : ": too much"}`)),
    memoryBar(found.name, parts, memory),
    h("div", { class: "blocks", role: "img", "aria-label": words }, layers, h("span", { class: "quiet" }, words)));
}

export class View {
  constructor() {
    this.verdict = h("p", { class: "verdict" });
    this.figures = h("div", { class: "figures" });
    this.places = h("div", { class: "places" });
    this.foot = h("div", {});
    this.element = h("div", {}, this.verdict, this.figures, section("Where it lies", this.places), this.foot);
  }

  async load(state, signal) {
    return ask("fit", { ...pick(state, ...fields.filter((name) => name !== "recipe")), weights: state.recipe, engine: "llama.cpp" }, signal);
  }

  show(report) {
    this.verdict.className = `verdict ${report.fits ? "good" : "bad"}`;
    this.verdict.textContent = report.answer;
    const { speed } = report;
    const fast = speed?.estimated_tokens_per_s ?? report.tokens_per_s;
    this.line = `${report.fits ? "Fits" : "Does not fit"}${fast ? ` · ${number(fast)} tokens/s ${speed?.estimated_tokens_per_s ? "(estimate)" : "(upper bound)"}` : ""}`;
    fill(this.figures,
      report.tokens_per_s ? figure("Tokens/s (upper bound)", number(report.tokens_per_s), report.tokens_per_s,
        counted("tokens_per_s", "One sequence, decoded at the peak rates of each place in turn: its bytes over its bandwidth. No run beats it.")) : null,
      speed?.estimated_tokens_per_s ? figure("Tokens/s (estimate)", number(speed.estimated_tokens_per_s), speed.estimated_tokens_per_s,
        counted("estimated_tokens_per_s", "At the rates that published runs of llama.cpp reached.")) : null,
      figure("Weights", bytes(report.devices.reduce((sum, each) => sum + each.weight_bytes, report.host.weight_bytes)), 0,
        counted("weights", "All tensors, on devices and the host; a table that is kept twice counts twice.")),
      figure("Context", bytes(report.devices.reduce((sum, each) => sum + each.context_bytes, report.host.context_bytes)), 0,
        counted("context", `The cache of ${count(report.parallel)} × ${count(report.context)} tokens, as llama.cpp allocates it.`)));
    fill(this.places, [...report.devices, report.host].map(place));
    fill(this.foot, starts("Start it", report.engine_command), notes(report), commands([report.command]));
  }
}
