// Numbers as people read them: with their unit, in few digits, and a dash where there is none.

export const NONE = "–";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function digits(value, most = 3) {
  return new Intl.NumberFormat("en", { maximumSignificantDigits: most }).format(value);
}

function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

export function number(value) {
  if (missing(value)) return NONE;
  if (Math.abs(value) >= 1e9) return `${digits(value / 1e9)} G`;
  if (Math.abs(value) >= 1e6) return `${digits(value / 1e6)} M`;
  return Math.abs(value) >= 100 || Number.isInteger(value) ? WHOLE.format(value) : digits(value);
}

export function rate(value) {
  return missing(value) ? NONE : `${number(value)}/s`;
}

export function percent(value) {
  return missing(value) ? NONE : `${new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format(value * 100)} %`;
}

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(value) {
  if (missing(value)) return NONE;
  let at = 0;
  for (; Math.abs(value) >= 999.5 && at < SIZES.length - 1; at++) value /= 1000;
  return `${digits(value)} ${SIZES[at]}`;
}

export function seconds(value) {
  if (missing(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(value * 1e6)} µs`;
  if (size < 1) return `${digits(value * 1e3)} ms`;
  if (size < 120) return `${digits(value)} s`;
  if (size < 7200) return `${digits(value / 60)} min`;
  return size < 172800 ? `${digits(value / 3600)} h` : `${digits(value / 86400)} days`;
}

// Milliseconds since 1970 as a time in UTC.
export function time(ms) {
  if (missing(ms)) return NONE;
  const at = new Date(ms);
  return Number.isNaN(at.getTime()) ? String(ms) : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function clock(ms) {
  return new Date(ms).toTimeString().slice(0, 8);
}

// Any value of JSON as one line of text.
export function value(given) {
  if (given === null || given === undefined) return "null";
  return typeof given === "string" ? given : JSON.stringify(given);
}
