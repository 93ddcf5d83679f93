// Numbers as people read them; the report's own number stays in the element's data-value.

const IEC = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SI = ["B", "kB", "MB", "GB", "TB", "PB"];
const PREFIXES = ["", "k", "M", "G", "T", "P", "E"];

let iec = true;

export function useUnits(name) {
  iec = name !== "GB";
}

export function memoryUnit() {
  return iec ? { name: "GiB", bytes: 1073741824 } : { name: "GB", bytes: 1e9 };
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? Math.ceil(Math.log10(size) + 0.01) : 4 });
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const step = iec ? 1024 : 1000;
  let place = 0;
  let shown = value;
  while (Math.abs(shown) >= step && place < 5) { shown /= step; place += 1; }
  return `${digits(shown)} ${(iec ? IEC : SI)[place]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  return value < 300 ? `${digits(value)} s` : `${digits(value / 60)} min`;
}

export function number(value) {
  return value === null || value === undefined ? "–" : digits(value);
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function big(value, unit) {
  if (value === null || value === undefined) return "–";
  let place = 0;
  let shown = value;
  while (Math.abs(shown) >= 1000 && place < 6) { shown /= 1000; place += 1; }
  return `${digits(shown)} ${PREFIXES[place]}${unit}`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${digits(value * 100)}%`;
}

export function yes(value) {
  return value === null || value === undefined ? "–" : value ? "yes" : "no";
}
