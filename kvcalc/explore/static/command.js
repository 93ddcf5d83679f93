// The line that prints the same on a terminal.

import { h, say } from "./dom.js";

async function copy(text, output) {
  try {
    await navigator.clipboard.writeText(text);
    say("The command is copied.");
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(output);
    window.getSelection().removeAllRanges();
    window.getSelection().addRange(range);
    say("The command is selected: copy it with the keyboard.");
    return false;
  }
}

export function commands(lines) {
  const found = [...new Set(lines.filter(Boolean))];
  return h("section", { class: "commands" },
    h("h2", {}, "The same on the command line"),
    found.map((line) => {
      const output = h("code", {}, line);
      const button = h("button", { type: "button", "aria-label": `Copy as command: ${line}`, onclick: async () => {
        const done = await copy(line, output);
        button.textContent = done ? "Copied" : "Selected";
        setTimeout(() => { button.textContent = "Copy as command"; }, 1500);
      } }, "Copy as command");
      return h("div", { class: "command" }, output, button);
    }));
}

// The line that starts an engine, to be copied.
export function starts(heading, line) {
  if (!line) return null;
  const output = h("code", {}, line);
  const button = h("button", { type: "button", "aria-label": `Copy: ${heading}`, onclick: () => copy(line, output) }, "Copy");
  return h("section", { class: "commands" }, h("h2", {}, heading), h("div", { class: "command" }, output, button));
}
