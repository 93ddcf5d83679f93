// Charts from the server's specifications, drawn without eval; title and source become the caption.

import { h } from "./dom.js";
import { memoryUnit } from "./units.js";

// Dark turns a chart's colours over: there a grid that stands back is one that is light before.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
// The fill that the server gives to cells without a value.
const WITHOUT = "#e6e6e7";
const SVG = "http://www.w3.org/2000/svg";

let runtime;

function load() {
  runtime ??= import("./vega.js").then(() => window.vegaEmbed);
  return runtime;
}

// Bytes become the unit that is chosen, in the data too, so that ticks are round.
function inUnits(spec) {
  const unit = memoryUnit();
  for (const part of [...(spec.layer ?? []), ...(spec.vconcat ?? [])]) inUnits(part);
  for (const name of ["x", "y"]) {
    const channel = spec.encoding?.[name];
    if (typeof channel?.title !== "string" || !channel.title.endsWith(", bytes")) continue;
    channel.title = channel.title.replace(/bytes$/, unit.name);
    channel.axis = { ...channel.axis, format: ",~r" };
    if (channel.scale?.domainMax) channel.scale.domainMax /= unit.bytes;
    for (const row of spec.data.values) row[channel.field] /= unit.bytes;
    for (const tip of [spec.encoding.tooltip ?? []].flat()) {
      if (tip.field === channel.field) Object.assign(tip, { title: unit.name, type: "quantitative", format: ",.4~r" });
    }
  }
}

function fitted(given, width) {
  const spec = structuredClone(given);
  delete spec.title;
  const narrow = width < 560;
  spec.config = { ...spec.config, background: "transparent",
    axis: { ...spec.config?.axis, gridColor: dark.matches ? "#cfcfcf" : "#ececec" },
    legend: { ...spec.config?.legend, orient: "bottom", columns: narrow ? 1 : 4, labelLimit: Math.min(320, width - 60),
      layout: { bottom: { anchor: "start", direction: narrow ? "vertical" : "horizontal" } } } };
  for (const part of spec.vconcat ?? [spec]) {
    part.width = Math.max(180, width - 84);
    if (part.height) part.height = narrow ? Math.min(part.height, 260) : part.height;
  }
  if (!spec.vconcat) spec.autosize = { type: "fit-x", contains: "padding" };
  if (!spec.vconcat) spec.width = Math.max(240, width);
  inUnits(spec);
  return spec;
}

// Cells that hold nothing are hatched.
function hatch(drawn) {
  const cells = drawn?.querySelectorAll(`[fill="${WITHOUT}"]`) ?? [];
  if (!cells.length) return;
  const make = (tag, attributes, ...inside) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...inside);
    return element;
  };
  drawn.prepend(make("defs", {}, make("pattern", { id: "hatched", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    make("rect", { width: 7, height: 7, fill: "#fafafa" }), make("line", { x1: 0, y1: 0, x2: 0, y2: 7, stroke: "#c4c4c4", "stroke-width": 2 }))));
  for (const cell of cells) cell.setAttribute("fill", "url(#hatched)");
}

function tips(place) {
  const tip = h("div", { class: "tip", "aria-hidden": "true" });
  tip.hidden = true;
  place.append(tip);
  return (handler, event, item, value) => {
    if (value === null || value === undefined || value === "") { tip.hidden = true; return; }
    const rows = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
    tip.replaceChildren(...rows.map(([name, shown]) => h("div", {}, h("span", {}, name), " ", h("b", {}, String(shown)))));
    tip.hidden = false;
    const box = place.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - box.top + 12}px`;
  };
}

// What a specification says, but for the names of its fields and marks, in the words of another language.
const NAMES = new Set(["field", "type", "mark", "symbolType"]);

export function worded(spec, words) {
  if (typeof spec === "string") return words[spec] ?? spec;
  if (Array.isArray(spec)) return spec.map((part) => worded(part, words));
  if (!spec || typeof spec !== "object") return spec;
  return Object.fromEntries(Object.entries(spec).map(([name, part]) => [name, NAMES.has(name) ? part : worded(part, words)]));
}

export class Chart {
  constructor(name) {
    this.place = h("div", { class: "plot" });
    this.caption = h("figcaption", {});
    this.element = h("figure", { class: "chart", "data-chart": name }, this.caption, this.place);
    this.turn = 0;
    new ResizeObserver(([entry]) => {
      if (this.spec && Math.abs(entry.contentRect.width - this.width) > 8) this.draw(this.spec);
    }).observe(this.place);
  }

  async draw(spec) {
    this.element.hidden = !spec;
    this.spec = spec;
    if (!spec) return;
    const turn = (this.turn += 1);
    const embed = await load();
    this.width = this.place.clientWidth || 600;
    const fresh = h("div", {});
    const title = spec.title?.text ?? "";
    const subtitle = [spec.title?.subtitle ?? []].flat();
    const { view, finalize } = await embed(fresh, fitted(spec, this.width), {
      ast: true, actions: false, defaultStyle: false, renderer: "svg", mode: "vega-lite", tooltip: (...told) => this.tip?.(...told),
    }).then((result) => ({ view: result.view, finalize: () => result.finalize() }));
    if (turn !== this.turn) { finalize(); return; }
    this.finalize?.();
    this.finalize = finalize;
    view.description?.(title);
    this.caption.replaceChildren(h("strong", {}, title), ...subtitle.map((line) => h("span", {}, line)));
    const drawn = fresh.querySelector("svg");
    hatch(drawn);
    drawn?.setAttribute("role", "img");
    drawn?.setAttribute("aria-label", [title, ...subtitle].join(". "));
    this.place.replaceChildren(fresh);
    this.place.dataset.width = this.width;
    this.tip = tips(this.place);
    this.element.dataset.drawn = String(turn);
  }
}
