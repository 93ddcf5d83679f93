// Side by side: the configuration shown and up to three that were set beside it.

import { compare, pastedConfig, query } from "../ask.js";
import { commands } from "../command.js";
import { fill, h, table } from "../dom.js";
import { roomForSides, run } from "../state.js";
import { bytes, count, number, seconds, yes } from "../units.js";

function text(quantity, value) {
  if (typeof value === "boolean") return yes(value);
  if (typeof value === "string") return value;
  if (quantity.includes("bytes") && !quantity.includes("per_byte")) return bytes(value);
  if (quantity.endsWith("_s") && !quantity.includes("per_s")) return seconds(value);
  return Number.isInteger(value) ? count(value) : number(value);
}

function sideOf(state) {
  return query(run(state, "gpu", "batch", "context")).toString();
}

function label(side) {
  const found = new URLSearchParams(side);
  const rest = [...found].filter(([name, value]) => !["model", "gpu", "gpus"].includes(name) && value).map(([name, value]) => `${name} ${value}`);
  return [found.get("model"), found.get("gpu") ? `${found.get("gpus") ?? 1} × ${found.get("gpu")}` : "", ...rest].filter(Boolean).join(", ");
}

export class Comparison {
  constructor(app) {
    this.app = app;
    this.chips = h("ul", { class: "chips" });
    this.add = h("button", { type: "button", id: "add-side", onclick: () => this.keep() }, "Keep this configuration to compare");
    this.result = h("div", { id: "comparison" });
    this.element = h("section", {}, h("h2", {}, "Side by side"), h("p", { class: "quiet" },
      "Keep a configuration, then change the controls: up to three stand beside the one shown."), this.add, this.chips, this.result);
  }

  keep() {
    this.app.state.sides.push(sideOf(this.app.state));
    this.app.changed();
  }

  drop(place) {
    this.app.state.sides.splice(place, 1);
    this.app.changed();
    this.add.focus();
  }

  async update(state) {
    this.add.disabled = !roomForSides(state) || Boolean(pastedConfig()) || state.sides.includes(sideOf(state));
    fill(this.chips, state.sides.map((side, place) => h("li", {}, h("span", {}, label(side)),
      h("button", { type: "button", "aria-label": `Remove ${label(side)}`, onclick: () => this.drop(place) }, "×"))));
    const sides = [sideOf(state), ...state.sides.filter((side) => side !== sideOf(state))];
    if (sides.length < 2 || pastedConfig()) {
      fill(this.result, pastedConfig() && state.sides.length ? h("p", { class: "quiet" }, "A pasted config cannot be compared.") : null);
      return;
    }
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const report = await compare(sides, state.engine);
      if (turn !== this.turn) return;
      const shown = report.rows.filter((row) => row.values.some((value) => value !== null));
      fill(this.result, table("The first is the one shown; the best of each row is marked", ["", ...sides.map(label)],
        shown.map((row) => [row.label, ...row.values.map((value, place) => {
          const ratio = place && row.ratios[place] !== null ? ` (${number(row.ratios[place])}×)` : "";
          const words = `${text(row.quantity, value)}${ratio}`;
          return row.best.includes(place) ? h("strong", { title: "best" }, `${words} ★`) : words;
        })])), commands([report.command]));
    } catch (mistake) {
      fill(this.result, h("p", { class: "wrong" }, `${mistake.message} ${mistake.hint ?? ""}`));
    }
  }
}
