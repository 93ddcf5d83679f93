// Learn: the demonstrations of `kvcalc demo`, step by step.

import { ask } from "../ask.js";
import { Chart } from "../chart.js";
import { commands } from "../command.js";
import { counted, figure } from "../explain.js";
import { fill, h, section } from "../dom.js";
import { pick } from "../state.js";
import { bytes, count, number, percent } from "../units.js";

export const title = "Learn";
export const fields = ["demo", "demo-prompt", "demo-output", "demo-gamma", "demo-block", "seed"];

const PLAY_MS = 700;
const ASKED = {
  "kv-cache": { "demo-prompt": "prompt", "demo-output": "output-tokens", seed: "seed" },
  speculate: { "demo-prompt": "prompt", "demo-output": "output-tokens", "demo-gamma": "gamma", seed: "seed" },
  paging: { "demo-block": "block-size" },
  drift: { seed: "seed" },
};

const cell = (kind, text, label) => h("span", { class: `cell ${kind}`, title: label }, text);

const LESSONS = {
  "kv-cache": {
    told: "Without a cache each new token computes the keys and values of all tokens before it again. With a cache it computes its own and reads the others. The tokens are the same.",
    steps: (report) => report.steps,
    figures: (report) => [
      figure("Projections without a cache", count(report.projections_without), report.projections_without, counted("projections_without", "Tokens whose keys and values are computed in each layer, over all passes, when nothing is kept.")),
      figure("with one", count(report.projections_with), report.projections_with, counted("projections_with", "The same when they are kept: the prompt once, then one for each token that is fed back.")),
      figure("Same tokens", report.same_tokens ? "yes" : "no", report.same_tokens, counted("same_tokens", "Whether both runs chose the same tokens, each computed on its own.")),
      figure("Cache at the end", bytes(report.cache_bytes), report.cache_bytes, counted("cache_bytes", "The bytes of the arrays of keys and values after the last pass."))],
    step: (step, report) => {
      const row = (computed, kept) => [...Array.from({ length: kept }, () => cell("kept", "", "read from the cache")),
        ...Array.from({ length: computed }, () => cell("computed", "", "computed"))];
      return [h("p", {}, `Token ${step.place} of ${report.output_tokens} (${step.phase}): it is number ${step.tokens.join(", ")} of the vocabulary.`),
        h("div", { class: "lane" }, h("span", { class: "name" }, "without"), row(step.projections_without, 0), h("b", {}, `${step.projections_without} computed`)),
        h("div", { class: "lane" }, h("span", { class: "name" }, "with"), row(step.projections_with, step.past_tokens), h("b", {}, `${step.projections_with} computed, ${step.past_tokens} read`)),
        h("p", { class: "quiet" }, Object.entries(step.shapes).map(([name, shape]) => `${name} [${shape.join(", ")}]`).join("  ·  "))];
    },
  },
  speculate: {
    told: "A draft proposes tokens and the target checks them in one pass. It keeps those that it would have chosen, and adds one of its own. Whatever the draft, the text is the target's.",
    steps: (report) => report.steps,
    figures: (report) => report.drafts.map((draft) => figure(`${draft.name} draft`, `${count(draft.target_passes)} passes`, draft.target_passes, counted("target_passes", "Passes of the target that the text took: each checks one draft and adds one token of its own."),
      `${number(draft.mean_tokens_per_pass)} tokens a pass, ${draft.same_output ? "same text" : "other text"}`)),
    step: (step) => [h("p", {}, `${step.draft} draft, pass ${step.place}: ${step.accepted.length} of ${step.drafted.length} accepted, then the target's ${step.ending}.`),
      h("div", { class: "lane" }, h("span", { class: "name" }, "drafted"), step.drafted.map((token, place) =>
        cell(place < step.accepted.length ? "good" : "bad", String(token), place < step.accepted.length ? "accepted" : "rejected"))),
      h("div", { class: "lane" }, h("span", { class: "name" }, "taken"), step.emitted.map((token, place) =>
        cell(place < step.accepted.length ? "good" : "own", String(token), place < step.accepted.length ? "from the draft" : "the target's own")))],
  },
  paging: {
    told: "Memory set aside for the longest request stays mostly empty. In blocks it goes to tokens that exist; a prefix can be shared, and is copied when one of its owners writes.",
    steps: (report) => report.sharing,
    figures: (report) => [
      figure("Requests at once, set aside", number(report.reserved.mean_running_requests), report.reserved.mean_running_requests, counted("reserved.mean_running_requests", "Requests in memory, mean over the run, where each is given the room of the longest."), `${percent(report.reserved.useful_share)} of memory holds tokens`),
      figure("in blocks", number(report.paged.mean_running_requests), report.paged.mean_running_requests, counted("paged.mean_running_requests", "Requests in memory, mean over the run, where each is given blocks as its tokens come."), `${percent(report.paged.useful_share)} of memory holds tokens`),
      figure("More requests", `${number(report.more_requests)} ×`, report.more_requests, counted("more_requests", "Requests at once in blocks, over those at once with memory set aside."))],
    step: (step, report, place) => {
      const owners = new Map();
      for (const line of step.tables) for (const block of line) owners.set(block, (owners.get(block) ?? 0) + 1);
      return [h("p", {}, `${place + 1}. ${step.what}`),
        step.tables.map((line, number_) => h("div", { class: "lane" }, h("span", { class: "name" }, `sequence ${number_ + 1}`),
          line.map((block) => cell(owners.get(block) > 1 ? "kept" : "computed", String(block), owners.get(block) > 1 ? "shared" : "its own")))),
        h("p", { class: "quiet" }, `${step.blocks} blocks have an owner; without sharing it would be ${step.unshared_blocks}.`)];
    },
  },
  drift: {
    told: "A generator that feeds on its own states drifts from the truth. A consistency loss in training makes it drift less.",
    steps: (report) => report.steps,
    figures: (report) => [figure("Error at the end", number(report.final_error), report.final_error, counted("final_error", "The error after the last step of a generator that is fed its own states.")),
      figure("with a consistency loss", number(report.final_error_consistent), report.final_error_consistent, counted("final_error_consistent", "The same where the consistency loss was trained with.")),
      figure("Less by", `${number(report.reduction)} ×`, report.reduction, counted("reduction", "The first error over the second."))],
    step: (step) => [h("p", {}, `After ${step.place} ${step.place === 1 ? "step" : "steps"}: error ${number(step.free_running_error)} running free, ${number(step.teacher_forced_error)} from true states; with the consistency loss ${number(step.free_running_error_consistent)}.`)],
  },
};

export class View {
  constructor() {
    this.told = h("p", { class: "told" });
    this.figures = h("div", { class: "figures" });
    this.stage = h("div", { class: "stage", "aria-live": "polite" });
    this.place = h("input", { type: "range", id: "step", min: 0, max: 0, value: 0, oninput: () => this.at(Number(this.place.value)) });
    this.back = h("button", { type: "button", id: "back", onclick: () => this.at(Number(this.place.value) - 1) }, "Back");
    this.next = h("button", { type: "button", id: "next", onclick: () => this.at(Number(this.place.value) + 1) }, "Next");
    this.play = h("button", { type: "button", id: "play", onclick: () => this.toggle() }, "Play");
    this.chart = new Chart("demo");
    this.foot = h("div", {});
    this.element = h("div", {}, this.told, this.figures,
      section("Step by step", h("div", { class: "player" }, this.back, this.next, this.play, h("label", { for: "step", class: "sr-only" }, "Step"), this.place), this.stage),
      section("All of it", this.chart.element), this.foot);
  }

  async load(state, signal) {
    const demo = LESSONS[state.demo] ? state.demo : "kv-cache";
    for (const field of document.querySelectorAll("#controls [data-field]")) {
      field.hidden = field.dataset.field !== "demo" && !(field.dataset.field in ASKED[demo]);
    }
    const given = pick(state, ...Object.keys(ASKED[demo]));
    const asked = Object.fromEntries(Object.entries(given).map(([name, value]) => [ASKED[demo][name], value]));
    try {
      return { demo, report: await ask(`demo/${demo}`, asked, signal) };
    } catch (mistake) {
      const own = Object.entries(ASKED[demo]).find(([, option]) => option === mistake.field);
      if (own) [mistake.field] = own;
      throw mistake;
    }
  }

  show({ demo, report }) {
    this.stop();
    this.lesson = LESSONS[demo];
    this.report = report;
    this.told.textContent = this.lesson.told;
    fill(this.figures, this.lesson.figures(report));
    this.steps = this.lesson.steps(report);
    this.place.max = Math.max(0, this.steps.length - 1);
    this.at(0);
    this.chart.draw(report.charts.main);
    fill(this.foot, commands([report.command]));
  }

  at(place) {
    if (!this.steps?.length) { fill(this.stage); return; }
    const wanted = Math.max(0, Math.min(place, this.steps.length - 1));
    this.place.value = wanted;
    this.place.setAttribute("aria-valuetext", `${wanted + 1} of ${this.steps.length}`);
    this.back.disabled = wanted === 0;
    this.next.disabled = wanted === this.steps.length - 1;
    fill(this.stage, this.lesson.step(this.steps[wanted], this.report, wanted));
  }

  toggle() {
    if (this.timer) { this.stop(); return; }
    this.play.textContent = "Pause";
    if (this.next.disabled) this.at(0);
    this.timer = setInterval(() => {
      if (this.next.disabled || !this.element.isConnected) { this.stop(); return; }
      this.at(Number(this.place.value) + 1);
    }, PLAY_MS);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }
}
