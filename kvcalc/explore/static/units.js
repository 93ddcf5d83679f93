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

// What a report leaves out is null; what is not even a field of it is a fault of this page, and shown as one.
function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

function absent(value) {
  return value === null ? "–" : "?";
}

// Three significant digits, and whole numbers in full.
function digits(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 0.001) return value.toExponential(2);
  if (size >= 999.5) return Math.round(value).toLocaleString("en");
  return value.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
}

export function bytes(value) {
  if (missing(value)) return absent(value);
  const step = iec ? 1024 : 1000;
  let place = 0;
  let shown = value;
  while (Math.abs(shown) >= step * 0.9995 && place < 5) { shown /= step; place += 1; }
  return `${digits(shown)} ${(iec ? IEC : SI)[place]}`;
}

export function seconds(value) {
  if (missing(value)) return absent(value);
  if (value === 0) return "0 s";
  if (value < 1e-6) return `${digits(value * 1e9)} ns`;
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  return value < 300 ? `${digits(value)} s` : `${digits(value / 60)} min`;
}

export function number(value) {
  return missing(value) ? absent(value) : digits(value);
}

export function count(value) {
  return missing(value) ? absent(value) : Math.round(value).toLocaleString("en");
}

export function many(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function requestRate(value) {
  return `${number(value)} request${value === 1 ? "" : "s"}/s`;
}

export function big(value, unit) {
  if (missing(value)) return absent(value);
  let place = 0;
  let shown = value;
  while (Math.abs(shown) >= 1000 && place < 6) { shown /= 1000; place += 1; }
  return `${digits(shown)} ${PREFIXES[place]}${unit}`;
}

export function percent(value) {
  return missing(value) ? absent(value) : `${digits(value * 100)}%`;
}

export function yes(value) {
  return missing(value) ? absent(value) : value ? "yes" : "no";
}
