// The page: one form, one state, one view at a time.

import { Mistake, catalogue, pastedConfig } from "./ask.js";
import { fill, h, say } from "./dom.js";
import { closeExplained } from "./explain.js";
import { clearMistakes, controls, offer, showMistake } from "./fields.js";
import { Paste } from "./paste.js";
import { offerNames } from "./pick.js";
import { readState, writeState } from "./state.js";
import { big, useUnits } from "./units.js";
import * as learn from "./views/learn.js";
import * as local from "./views/local.js";
import * as network from "./views/network.js";
import * as plan from "./views/plan.js";
import * as serve from "./views/serve.js";
import * as size from "./views/size.js";
import * as speculate from "./views/speculate.js";
import * as speed from "./views/speed.js";

const VIEWS = { size, local, speed, network, speculate, serve, plan, learn };
const WAIT_MS = 40;

const form = document.getElementById("controls");
const main = document.getElementById("view");
const nav = document.getElementById("views");
const line = document.getElementById("line");
const fold = document.getElementById("fold");

class App {
  constructor() {
    this.state = readState();
    if (!VIEWS[this.state.view]) this.state.view = "size";
    this.paste = new Paste(this);
    this.alert = h("div", { class: "wrong", role: "alert" });
    this.alert.hidden = true;
    this.links = Object.entries(VIEWS).map(([name, view]) =>
      h("a", { href: `?view=${name}`, "data-view": name, onclick: (event) => { event.preventDefault(); this.open(name); } }, view.title));
    fill(nav, this.links);
    for (const radio of document.querySelectorAll("[name=units]")) {
      radio.checked = radio.value === this.state.units;
      radio.addEventListener("change", () => { this.state.units = radio.value; this.changed(); });
    }
    fold.addEventListener("click", () => this.fold(!form.classList.contains("folded")));
    document.getElementById("share").addEventListener("click", () => share());
    const embedded = new URLSearchParams(window.location.search).get("embed");
    if (embedded !== null) {
      document.body.classList.add("embed");
      if (VIEWS[embedded]) this.state.view = embedded;
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("popstate", () => window.location.reload());
    this.fold(true);
    this.open(this.state.view);
  }

  open(name) {
    this.state.view = name;
    const chosen = VIEWS[name];
    for (const link of this.links) link.dataset.view === name ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    document.title = `kvcalc: ${chosen.title}`;
    form.removeAttribute("lang");
    fill(form, controls(chosen.fields, this.state, (field, value) => this.set(field, value)), name === "learn" ? null : this.paste.element);
    const model = document.getElementById("model");
    if (model) model.disabled = Boolean(pastedConfig());
    this.view = new chosen.View(this);
    line.textContent = "";
    fill(main, this.alert, name === "learn" ? null : this.paste.result, this.view.element);
    this.view.element.classList.add("empty");
    this.changed({ now: true });
  }

  set(name, value) {
    this.state[name] = value.trim();
    const { settle } = VIEWS[this.state.view];
    if (settle) {
      settle(this.state, name);
      for (const other of ["draft", "method"]) if (other !== name) document.getElementById(other).value = this.state[other];
    }
    this.changed({ field: name });
  }

  // On a phone the controls open below the line that answers.
  fold(folded) {
    form.classList.toggle("folded", folded);
    fold.setAttribute("aria-expanded", String(!folded));
    fold.textContent = folded ? "Change" : "Done";
  }

  // What a suggestion sets, in the state and in its controls.
  apply(values) {
    Object.assign(this.state, values);
    this.open(this.state.view);
    main.focus({ preventScroll: true });
  }

  changed({ now = false, field = "" } = {}) {
    useUnits(this.state.units);
    writeState(this.state);
    clearTimeout(this.timer);
    if (field && this.view.waits) { this.view.waits(this.state); return; }
    this.timer = setTimeout(() => this.compute(), now ? 0 : WAIT_MS);
  }

  async compute() {
    this.stop?.abort();
    const stop = (this.stop = new AbortController());
    const view = this.view;
    main.setAttribute("aria-busy", "true");
    try {
      // what is answered first is shown first; the rest follows
      const early = (show) => {
        if (stop.signal.aborted) return;
        view.element.classList.remove("empty");
        show();
      };
      const answers = await view.load(this.state, stop.signal, early);
      if (stop.signal.aborted) return;
      clearMistakes(form);
      this.alert.hidden = true;
      view.element.classList.remove("empty", "stale");
      view.show(answers, this.state);
      line.textContent = view.line ?? "";
      line.classList.remove("stale");
      if (answers.mistake) this.complain(answers.mistake);
      closeExplained();
      say("The results are up to date.");
    } catch (mistake) {
      if (stop.signal.aborted || mistake.name === "AbortError") return;
      if (!(mistake instanceof Mistake)) throw mistake;
      view.element.classList.add("stale");
      line.classList.add("stale");
      this.complain(mistake);
    } finally {
      if (this.stop === stop) main.setAttribute("aria-busy", "false");
    }
  }

  // Beside its field where that is on the page, else above the results.
  complain(mistake) {
    const shown = this.paste.refuse(mistake) || showMistake(form, mistake, (name, value) => this.apply({ [name]: value }));
    const beside = shown && form.checkVisibility(); // an embedded page and a folded form show no field
    const nothing = this.view.element.classList.contains("empty");
    this.alert.hidden = beside && !nothing;
    if (beside && nothing) { fill(this.alert, h("p", {}, "No results yet: a field has a mistake; the message is beside it.")); return; }
    fill(this.alert, h("p", {}, mistake.message), mistake.hint ? h("p", {}, mistake.hint) : null,
      mistake.again ? h("button", { type: "button", class: "apply", onclick: () => this.changed({ now: true }) }, "Try again") : null);
  }
}

// The address holds all that is asked, so that whoever opens it sees the same.
async function share() {
  const button = document.getElementById("share");
  try {
    await navigator.clipboard.writeText(window.location.href);
    button.textContent = "Address copied";
  } catch {
    button.textContent = "Copy the address above";
  }
  say(button.textContent);
  setTimeout(() => { button.textContent = "Share"; }, 2000);
}

async function names() {
  const found = await catalogue();
  offer(found.choices);
  const models = found.models.toSorted((one, other) => one.architecture.localeCompare(other.architecture) || one.parameters - other.parameters);
  offerNames("models", models.map(({ name, architecture, parameters, aliases }) =>
    ({ name, family: architecture, about: big(parameters, " parameters"), also: aliases.join(" ") })));
  offerNames("gpus", found.gpus.map(({ name, title, aliases, memory_bytes: memory, memory_bandwidth_bytes_per_s: bandwidth }) =>
    ({ name, about: `${title}, ${big(memory, "B")}, ${big(bandwidth, "B/s")}`, also: aliases.join(" ") })));
}

// Without them the page answers all the same: names can be typed.
async function offerKnown() {
  const place = document.getElementById("unlisted");
  try {
    await names();
    place.hidden = true;
  } catch (mistake) {
    fill(place, h("span", {}, `The lists of models and accelerators could not be loaded: ${mistake.message}.`),
      h("button", { type: "button", onclick: () => { place.hidden = true; offerKnown(); } }, "Try again"));
    place.hidden = false;
  }
}

window.kvcalc = new App();
offerKnown();
