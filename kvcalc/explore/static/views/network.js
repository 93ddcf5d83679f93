// Network: the model from its first layer to its last, and each kind of layer with its bytes, FLOP and place on the roofline.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { fill, h, notes, section } from "../dom.js";
import { run } from "../state.js";
import { big, bytes, count, number, percent, seconds } from "../units.js";

export const title = "Network";
export const fields = ["model", "gpu", "gpus", "phase", "context", "batch", "weights", "kv-dtype", "activations",
  "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel"];

const PARTS = { attention: "projections", cache: "scores and cache", mlp: "MLP", experts: "experts", vector: "norms", embedding: "embedding", head: "output head", other: "other" };
const COLOURS = 7;

// A bar as long as its share of the longest, in pieces.
function bar(label, pieces, most) {
  const shown = pieces.filter(([, size]) => size > 0);
  const inside = shown.map(([kind, size]) => {
    const piece = h("i", { class: `piece ${kind}` });
    piece.style.width = `${(100 * size) / most}%`;
    return piece;
  });
  return h("span", { class: "share", role: "img", "aria-label": label, title: label }, inside);
}

function partRow(part, most, ridge) {
  const other = Math.max(0, part.moved_bytes - part.weight_bytes - part.kv_read_bytes);
  const moved = `${bytes(part.moved_bytes)}: weights ${bytes(part.weight_bytes)}, cache ${bytes(part.kv_read_bytes)}`;
  return h("tr", { "data-part": part.part }, h("th", { scope: "row" }, PARTS[part.part] ?? part.part),
    h("td", {}, bar(moved, [["weights", part.weight_bytes], ["cache", part.kv_read_bytes], ["other", other]], most.bytes), h("b", {}, bytes(part.moved_bytes))),
    h("td", {}, bar(big(part.flop, "FLOP"), [["flop", part.flop]], most.flop), h("b", {}, big(part.flop, "FLOP"))),
    h("td", {}, part.intensity_flop_per_byte === null ? "–" : number(part.intensity_flop_per_byte)),
    h("td", {}, seconds(part.ideal_s)),
    h("td", {}, part.flop ? `${part.limiter}${ridge && part.intensity_flop_per_byte ? `, ${percent(part.intensity_flop_per_byte / ridge)} of the ridge` : ""}` : part.limiter));
}

function kindCard(row, place, most, ridge) {
  const heading = row.layers ? `${count(row.layers)} × ${row.kind}` : row.kind;
  return h("article", { class: "kind", "data-kind": row.kind },
    h("h3", {}, h("i", { class: `block k${place % COLOURS}` }), ` ${heading}`),
    h("p", { class: "quiet" }, row.what, row.kv_bytes ? `; holds ${bytes(row.kv_bytes)} of cache` : ""),
    h("p", {}, `${bytes(row.moved_bytes)} moved, ${big(row.flop, "FLOP")}: ${number(row.intensity_flop_per_byte)} FLOP/B, ${seconds(row.ideal_s)} alone, ${row.limiter}-bound.`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Parts of ${heading}` }, h("table", {},
      h("thead", {}, h("tr", {}, ["part", "moved", "FLOP", "FLOP/B", "alone", "limit"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, row.parts.map((part) => partRow(part, most, ridge))))));
}

export class View {
  constructor() {
    this.verdict = h("p", { class: "verdict" });
    this.strip = h("div", { class: "strip", role: "img" });
    this.kinds = h("div", { class: "kinds" });
    this.chart = new Chart("layers");
    this.foot = h("div", {});
    this.element = h("div", {}, this.verdict, section("From the first layer to the last", this.strip), section("By kind of layer", this.kinds),
      section("On the roofline", this.chart.element), this.foot);
  }

  async load(state, signal) {
    return ask("layers", run(state, "gpu", "batch", "context", "phase"), signal);
  }

  show(report) {
    this.verdict.textContent = report.answer;
    const slowest = report.rows.reduce((one, other) => (other.ideal_s > one.ideal_s ? other : one));
    this.line = `${slowest.kind}: ${seconds(slowest.ideal_s)}, ${slowest.limiter}-bound`;
    const places = new Map(report.rows.map((row, place) => [row.kind, place]));
    const told = report.order.map(({ kind, layers }) => `${layers} ${kind}`).join(", ");
    this.strip.setAttribute("aria-label", `Embedding, ${told}, head`);
    fill(this.strip, h("span", { class: "end" }, "embedding"), report.order.flatMap(({ kind, first, layers }) => Array.from({ length: layers }, (_, place) =>
      h("i", { class: `block k${places.get(kind) % COLOURS}`, title: `layer ${first + place}: ${kind}` }))), h("span", { class: "end" }, "head"));
    const parts = report.rows.flatMap((row) => row.parts);
    const most = { bytes: Math.max(1, ...parts.map((part) => part.moved_bytes)), flop: Math.max(1, ...parts.map((part) => part.flop)) };
    const ridge = report.ridge_flop_per_byte[report.formats.activations];
    fill(this.kinds, report.rows.map((row, place) => kindCard(row, place, most, ridge)));
    this.chart.draw(report.charts.main);
    fill(this.foot, notes(report), commands([report.command]));
  }
}
