// Elements without markup in strings: text is always text.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

export function say(text) {
  document.getElementById("status").textContent = text;
}

// What is being waited for, where a person sees it; empty for nothing.
export function showProgress(text) {
  const place = document.getElementById("progress");
  place.textContent = text;
  place.hidden = !text;
}

export function table(caption, columns, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
      h("tbody", {}, rows.map(([head, ...cells]) =>
        h("tr", {}, h("th", { scope: "row" }, head), cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h("td", {}, cell))))))));
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), children);
}

export function notes(...reports) {
  const found = [...new Set(reports.flatMap((report) => report?.notes ?? []))];
  return found.length ? h("ul", { class: "notes" }, found.map((note) => h("li", {}, note))) : null;
}
