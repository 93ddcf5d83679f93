// A pasted config.json becomes the model; a pasted engine log is held against the prediction.

import { pasteConfig, pastedConfig, reconcile } from "./ask.js";
import { commands } from "./command.js";
import { fill, h, say, table } from "./dom.js";
import { bytes, count, yes } from "./units.js";

const MOST = 8388608;

// As `kvcalc reconcile` prints it: the interval where its ends are shown differently, and whose numbers these are.
function predicted(row) {
  return [...new Set([row.predicted_least, row.predicted_most].map(printed))].join(" to ");
}

// With the two decimals that engines print.
function printed(value) {
  return Number.isInteger(value) || typeof value !== "number" ? count(value) : value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
}

export class Paste {
  constructor(app) {
    this.app = app;
    this.text = h("textarea", { id: "paste", rows: 5, spellcheck: "false", "aria-describedby": "paste-hint paste-error" });
    this.error = h("p", { class: "error", id: "paste-error", role: "alert" });
    this.using = h("div", {});
    this.result = h("div", { id: "reconciled" });
    this.element = h("details", { class: "group", id: "paste-group" }, h("summary", {}, "Paste a config.json or an engine's log"),
      h("div", { class: "field", "data-field": "config" }, h("label", { for: "paste" }, "Text"), this.text,
        h("p", { class: "hint", id: "paste-hint" }, "A config becomes the model. The start-up log of vLLM, SGLang or llama.cpp is reconciled. Nothing leaves this machine."),
        this.error),
      h("button", { type: "button", id: "read-paste", onclick: () => this.read() }, "Read it"), this.using);
  }

  fail(text) {
    this.error.textContent = text;
    this.text.setAttribute("aria-invalid", "true");
  }

  async read() {
    const text = this.text.value;
    this.error.textContent = "";
    this.text.removeAttribute("aria-invalid");
    if (!text.trim()) { this.fail("there is nothing to read"); return; }
    if (new Blob([text]).size > MOST) { this.fail(`at most ${count(MOST)} bytes can be pasted`); return; }
    // a line of docker's own files begins like a config
    if (text.trimStart().startsWith("{") && !text.trimStart().startsWith('{"log"')) { this.use(text); return; }
    fill(this.result, h("p", { class: "quiet" }, "Reading …"));
    try {
      this.show(await reconcile(text, {}));
    } catch (mistake) {
      this.unread(mistake, text);
    }
  }

  // A log that names no model is held against the form's only where that is asked for.
  unread(mistake, text) {
    fill(this.result);
    this.fail(`${mistake.message}${mistake.hint ? `: ${mistake.hint}` : ""}`);
    const { model } = this.app.state;
    if (!mistake.message.includes("names no model") || !model || pastedConfig()) return;
    this.error.append(h("button", { type: "button", class: "apply", id: "hold-against", onclick: async () => {
      try {
        this.show(await reconcile(text, { model }));
        this.error.textContent = "";
      } catch (other) {
        this.fail(`${other.message}${other.hint ? `: ${other.hint}` : ""}`);
      }
    } }, `It is of ${model}: hold it against that`));
  }

  use(text) {
    pasteConfig(text);
    fill(this.using, text ? h("p", {}, "The pasted config stands for the model. It is not in the page's address. ",
      h("button", { type: "button", id: "drop-config", onclick: () => this.use("") }, "Use a model of the catalogue again")) : null);
    const model = document.getElementById("model");
    if (model) model.disabled = Boolean(text);
    this.app.changed();
  }

  refuse(mistake) {
    if (!pastedConfig()) return false;
    if (mistake.field !== "config") return false;
    this.element.open = true;
    pasteConfig("");
    fill(this.using);
    const model = document.getElementById("model");
    if (model) model.disabled = false;
    this.fail(`${mistake.message}${mistake.hint ? `: ${mistake.hint}` : ""}`);
    return true;
  }

  show(report) {
    const wrong = report.rows.filter((row) => !row.agrees).length;
    const verdict = !report.rows.length ? "No printed number could be computed again." : wrong
      ? `${wrong} of ${report.rows.length} printed numbers do not agree.` : `All ${report.rows.length} printed numbers agree.`;
    say(verdict);
    const several = new Set(report.rows.map((row) => row.start_up)).size > 1;
    fill(this.result, h("section", { class: "reconciled" }, h("h2", {}, `Log: ${report.engine} ${report.version}, ${report.model}`),
      h("p", { class: `verdict ${wrong || !report.rows.length ? "bad" : "good"}` }, verdict),
      report.refusal ? h("p", { class: "verdict bad" }, `Did not start: ${report.refusal.reason}.`) : null,
      ...report.notes.filter((note) => note.includes("which was given")).map((note) => h("p", { class: "verdict bad" }, note)),
      table("Printed and predicted", ["quantity", "printed", "predicted", "agrees", "how"], report.rows.map((row) =>
        [several ? `${row.start_up}: ${row.quantity}` : row.quantity, printed(row.printed), predicted(row), yes(row.agrees), row.reason])),
      report.memory.length ? table("What took the memory of a rank", ["part", "taken"], report.memory.map(({ part, taken_bytes: taken }) => [part, bytes(taken)])) : null,
      [...report.left_out, ...report.advice, ...report.notes].map((note) => h("p", { class: "quiet" }, note)),
      report.start_with ? h("p", {}, `Start it with: ${report.start_with}`) : null,
      commands([report.command]),
      h("button", { type: "button", onclick: () => fill(this.result) }, "Close")));
    this.result.scrollIntoView({ block: "nearest" });
  }
}
