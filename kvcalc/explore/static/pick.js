// A field with a searchable list: type to narrow it, arrows or a press to choose. As ARIA's combobox pattern has it.

import { fill, h } from "./dom.js";

const lists = {};
let waiting = null;

// Entries of a list in the order shown: name, words beside it, words to search, and the heading it stands under.
export function offerNames(list, entries) {
  lists[list] = entries.map((entry) => ({ ...entry, text: `${entry.name} ${entry.about} ${entry.also}`.toLowerCase() }));
  waiting?.();
}

// A field that takes several names with commas is about the one that is being written.
function beingWritten(input, several) {
  return (several ? input.value.slice(input.value.lastIndexOf(",") + 1) : input.value).trim().toLowerCase();
}

export function pick(name, field, value, changed) {
  const list = h("ul", { class: "offers", id: `${name}-offers`, role: "listbox", "aria-label": field.label });
  list.hidden = true;
  const input = h("input", { id: name, name, value, role: "combobox", spellcheck: "false", autocapitalize: "off", autocomplete: "off",
    "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id,
    onfocus: (event) => event.target.select(), onclick: () => open(true), oninput: () => open(false),
    onblur: close, onchange: (event) => changed(name, event.target.value), onkeydown: onKey });
  let active = -1;

  function open(whole) {
    waiting = lists[field.list] ? null : () => { if (document.activeElement === input) open(whole); };
    if (waiting) return;
    const words = whole ? [] : beingWritten(input, field.several).split(/\s+/).filter(Boolean);
    const found = lists[field.list].filter(({ text }) => words.every((word) => text.includes(word)));
    const rows = [];
    found.forEach((entry, place) => {
      if (entry.family && entry.family !== found[place - 1]?.family) rows.push(h("li", { class: "family", role: "presentation" }, entry.family));
      rows.push(h("li", { role: "option", id: `${name}-offer-${place}`, "data-name": entry.name, "aria-selected": String(entry.name === input.value),
        onpointerdown: (event) => event.preventDefault(), onclick: () => choose(entry.name) }, h("b", {}, entry.name), h("span", {}, entry.about)));
    });
    fill(list, rows);
    active = -1;
    input.removeAttribute("aria-activedescendant");
    if (!rows.length) { close(); return; }
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    place();
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  // Beside its field, whatever scrolls: above it where there is more room.
  function place() {
    const box = input.getBoundingClientRect();
    const width = Math.min(Math.max(box.width, 440), document.documentElement.clientWidth - 16);
    const below = window.innerHeight - box.bottom - 12;
    const up = below < 200 && box.top > below;
    list.style.width = `${width}px`;
    list.style.left = `${Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8))}px`;
    list.style.maxHeight = `${Math.min(420, up ? box.top - 12 : below)}px`;
    list.style.top = up ? "auto" : `${box.bottom + 4}px`;
    list.style.bottom = up ? `${window.innerHeight - box.top + 4}px` : "auto";
  }

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(chosen) {
    input.value = field.several && input.value.includes(",") ? `${input.value.slice(0, input.value.lastIndexOf(",") + 1)}${chosen}` : chosen;
    close();
    changed(name, input.value);
  }

  function move(step) {
    const options = [...list.querySelectorAll("[role=option]")];
    options[active]?.classList.remove("active");
    active = (active + step + options.length) % options.length;
    options[active].classList.add("active");
    options[active].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", options[active].id);
  }

  function onKey(event) {
    if (event.key === "Escape" && !list.hidden) { event.stopPropagation(); close(); return; }
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open(true);
      if (!list.hidden) move(event.key === "ArrowDown" ? 1 : -1);
      return;
    }
    if (event.key !== "Enter") return;
    if (!list.hidden && active >= 0) { event.preventDefault(); choose(list.querySelectorAll("[role=option]")[active].dataset.name); } else close();
  }

  return [list, input];
}

window.addEventListener("scroll", ({ target }) => {
  for (const list of document.querySelectorAll(".offers:not([hidden])")) if (target !== list) document.activeElement?.blur();
}, { capture: true, passive: true });
