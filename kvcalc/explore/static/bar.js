// Memory as a bar: what takes it, hatched where it is free, as long as the memory itself; each part with its bytes below.

import { h } from "./dom.js";
import { bytes } from "./units.js";

// Below this share of the bar a part has no room for its words; the list below has them.
const ROOM = 0.12;

// Parts are [kind, bytes]; what is more than the memory reaches beyond the line that marks it.
export function memoryBar(label, parts, memory) {
  const shown = parts.filter(([, size]) => size > 0);
  const taken = shown.reduce((sum, [kind, size]) => sum + (kind === "free" ? 0 : size), 0);
  const whole = Math.max(memory ?? 0, shown.reduce((sum, [, size]) => sum + size, 0), 1);
  const words = shown.map(([kind, size]) => `${kind} ${bytes(size)}`);
  const pieces = shown.map(([kind, size], place) => {
    const piece = h("span", { class: `part ${kind}`, title: words[place], "data-bytes": String(size) }, size / whole > ROOM ? words[place] : "");
    piece.style.flexGrow = String(size / whole);
    return piece;
  });
  const bar = h("div", { class: "memory", role: "img", "aria-label": `${label}: ${words.join(", ")}` }, pieces);
  if (memory && taken > memory) {
    const line = h("i", { class: "end", title: `memory: ${bytes(memory)}` });
    line.style.left = `${(100 * memory) / whole}%`;
    bar.append(line);
  }
  return [bar, h("ul", { class: "legend", "aria-hidden": "true" }, shown.map(([kind], place) => h("li", {}, h("i", { class: `part ${kind}` }), words[place])))];
}
