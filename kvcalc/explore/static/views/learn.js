// Learn: one screen for each idea, step by step, in English and Japanese; the demonstrations are those of `kvcalc demo`.

import { ask } from "../ask.js";
import { Chart, worded } from "../chart.js";
import { commands } from "../command.js";
import { fill, h, section } from "../dom.js";
import { relabel } from "../fields.js";
import { pick } from "../state.js";
import { LESSONS } from "./lessons.js";
import { WORDS } from "./words.js";

export const title = "Learn";
export const fields = ["demo", "language", "model", "gpu", "demo-context", "demo-prompt", "demo-output", "demo-gamma", "demo-block", "demo-places", "demo-requests", "seed"];

const PLAY_MS = 700;
const ALWAYS = ["demo", "language"];

export class View {
  constructor() {
    this.heading = h("h2", { class: "lesson" });
    this.told = h("p", { class: "told" });
    this.figures = h("div", { class: "figures" });
    this.stage = h("div", { class: "stage", "aria-live": "polite" });
    this.place = h("input", { type: "range", id: "step", min: 0, max: 0, value: 0, oninput: () => this.at(Number(this.place.value)) });
    this.back = h("button", { type: "button", id: "back", onclick: () => this.at(Number(this.place.value) - 1) });
    this.next = h("button", { type: "button", id: "next", onclick: () => this.at(Number(this.place.value) + 1) });
    this.play = h("button", { type: "button", id: "play", onclick: () => this.toggle() });
    this.chart = new Chart("demo");
    this.label = h("label", { for: "step", class: "sr-only" });
    this.steps_ = section("", h("div", { class: "player" }, this.back, this.next, this.play, this.label, this.place), this.stage);
    this.whole = section("", this.chart.element);
    this.foot = h("div", {});
    this.element = h("div", {}, this.heading, this.told, this.figures, this.steps_, this.whole, this.foot);
  }

  async load(state, signal) {
    const demo = LESSONS[state.demo] ? state.demo : "memory";
    const lesson = LESSONS[demo];
    const own = lesson.fields ?? Object.keys(lesson.asks);
    for (const field of document.querySelectorAll("#controls [data-field]")) field.hidden = ![...ALWAYS, ...own].includes(field.dataset.field);
    const given = pick(state, ...own);
    if (lesson.load) return { demo, language: state.language, report: await lesson.load(given, signal) };
    const asked = Object.fromEntries(own.map((name) => [lesson.asks[name], given[name]]));
    try {
      return { demo, language: state.language, report: await ask(`demo/${demo}`, asked, signal) };
    } catch (mistake) {
      const field = own.find((name) => lesson.asks[name] === mistake.field);
      if (field) mistake.field = field;
      throw mistake;
    }
  }

  show({ demo, language, report }) {
    this.stop();
    this.common = WORDS[language] ?? WORDS.en;
    this.words = this.common[demo];
    this.element.lang = language;
    const form = document.getElementById("controls");
    form.lang = language;
    relabel(form, this.common.controls);
    this.lesson = LESSONS[demo];
    this.report = report;
    this.heading.textContent = this.common.names[demo];
    this.line = this.heading.textContent;
    this.told.textContent = this.words.told;
    for (const [element, word] of [[this.back, "back"], [this.next, "next"], [this.play, "play"], [this.label, "place"],
      [this.steps_.querySelector("h2"), "step"], [this.whole.querySelector("h2"), "all"]]) element.textContent = this.common[word];
    fill(this.figures, this.lesson.figures(report, this.words, this.common));
    this.steps = this.lesson.steps(report);
    this.place.max = Math.max(0, this.steps.length - 1);
    this.at(0);
    this.chart.draw(worded(report.charts.main, this.common.charts ?? {}));
    fill(this.foot, commands([report.command], this.common.commands));
  }

  at(place) {
    if (!this.steps?.length) { fill(this.stage); return; }
    const wanted = Math.max(0, Math.min(place, this.steps.length - 1));
    this.place.value = wanted;
    this.place.setAttribute("aria-valuetext", `${wanted + 1} / ${this.steps.length}`);
    this.back.disabled = wanted === 0;
    this.next.disabled = wanted === this.steps.length - 1;
    fill(this.stage, this.lesson.step(this.steps[wanted], this.report, this.words, wanted));
  }

  toggle() {
    if (this.timer) { this.stop(); return; }
    this.play.textContent = this.common.pause;
    if (this.next.disabled) this.at(0);
    this.timer = setInterval(() => {
      if (this.next.disabled || !this.element.isConnected) { this.stop(); return; }
      this.at(Number(this.place.value) + 1);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    if (this.common) this.play.textContent = this.common.play;
  }
}
