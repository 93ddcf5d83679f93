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

const ENGLISH = { heading: "The same on the command line", copy: "Copy as command", copied: "Copied", selected: "Selected" };

export function commands(lines, words = ENGLISH) {
  const found = [...new Set(lines.filter(Boolean))];
  return h("section", { class: "commands" },
    h("h2", {}, words.heading),
    found.map((line) => {
      const output = h("code", {}, line);
      const button = h("button", { type: "button", "aria-label": `${words.copy}: ${line}`, onclick: async () => {
        const done = await copy(line, output);
        button.textContent = done ? words.copied : words.selected;
        setTimeout(() => { button.textContent = words.copy; }, 1500);
      } }, words.copy);
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
