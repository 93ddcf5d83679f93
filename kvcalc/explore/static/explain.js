// A figure that tells its formula, its numbers and their sources: on hover, on focus and click.

import { ask } from "./ask.js";
import { h, say } from "./dom.js";

const card = h("div", { id: "explained", class: "explained", role: "dialog", "aria-label": "How the number comes about" });
card.hidden = true;
document.body.append(card);
let owner = null;
let pinned = false;
let timer = 0;

function close(returning) {
  card.hidden = true;
  pinned = false;
  owner?.setAttribute("aria-expanded", "false");
  if (returning) owner?.focus();
  owner = null;
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !card.hidden) close(pinned); });
document.addEventListener("click", (event) => {
  if (!card.hidden && !card.contains(event.target) && !event.target.closest?.(".figure")) close(false);
});

export function closeExplained() {
  if (!card.hidden && !owner?.isConnected) close(false);
}

function source(text) {
  const address = /https:\/\/\S+/.exec(text)?.[0];
  if (!address) return h("li", {}, text);
  const [before, after] = text.split(address);
  return h("li", {}, before, h("a", { href: address, target: "_blank", rel: "noreferrer" }, address), after);
}

function step(found) {
  return h("div", { class: "step" },
    h("h3", {}, found.quantity),
    h("p", { class: "formula" }, found.formula),
    h("p", { class: "expression" }, `= ${found.expression}`),
    h("p", { class: "result" }, `= ${found.value.toLocaleString("en", { maximumSignificantDigits: 15 })} ${found.unit}`),
    found.sources.length ? h("ul", {}, found.sources.map(source)) : null);
}

// What is explained by a formula is asked for; what is counted, or simulated, says what is counted.
async function parts({ report, fields, quantity, told }) {
  if (told) return [h("div", { class: "step" }, h("h3", {}, quantity), h("p", { class: "formula" }, told))];
  const steps = (await ask(report, { ...fields, explain: "true" })).explain ?? [];
  const shown = steps.filter((found) => found.quantity === quantity);
  const rest = steps.filter((found) => found.quantity !== quantity);
  return [
    shown.length ? shown.map(step) : h("p", { class: "wrong" }, `${quantity} has no formula`),
    rest.length ? h("details", {}, h("summary", {}, `The ${rest.length} steps it stands on`), rest.map(step)) : null,
  ].flat(2).filter(Boolean);
}

async function open(button, explained) {
  owner = button;
  button.setAttribute("aria-expanded", "true");
  card.replaceChildren(h("p", { class: "quiet" }, "Computing …"));
  card.hidden = false;
  place(button);
  let content;
  try {
    content = await parts(explained);
  } catch (mistake) {
    content = [h("p", { class: "wrong" }, mistake.message)];
  }
  if (owner !== button) return;
  card.replaceChildren(h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => close(true) }, "×"), ...content);
  place(button);
  if (pinned) card.querySelector(".close").focus();
}

function place(button) {
  const box = button.getBoundingClientRect();
  const width = Math.min(520, document.documentElement.clientWidth - 16);
  card.style.width = `${width}px`;
  card.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8)) + window.scrollX}px`;
  card.style.top = `${box.bottom + 6 + window.scrollY}px`;
}

// What is told of a figure that no formula gives.
export function counted(quantity, told) {
  return { quantity, told };
}

export function figure(label, text, value, explained, detail = "") {
  const inside = [h("span", { class: "label" }, label), h("span", { class: "number" }, text), detail ? h("span", { class: "detail" }, detail) : null];
  const data = { "data-quantity": explained?.quantity ?? label, "data-value": String(value) };
  if (!explained) return h("div", { class: "figure plain", ...data }, inside);
  const button = h("button", {
    type: "button", class: "figure", "aria-haspopup": "dialog", "aria-expanded": "false", "aria-controls": "explained", ...data,
    onclick: () => {
      clearTimeout(timer);
      if (owner === button && pinned) { close(true); return; }
      pinned = true;
      open(button, explained);
      say("The formula is shown below the number.");
    },
    onpointerenter: (event) => {
      if (event.pointerType !== "mouse" || pinned) return;
      clearTimeout(timer);
      timer = setTimeout(() => open(button, explained), 350);
    },
    onpointerleave: () => {
      clearTimeout(timer);
      if (!pinned && owner === button) timer = setTimeout(() => { if (!pinned && !card.matches(":hover")) close(false); }, 250);
    },
  }, inside);
  return button;
}

card.addEventListener("pointerleave", () => { if (!pinned) close(false); });
