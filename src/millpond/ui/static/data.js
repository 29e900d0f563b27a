// What the server tells, and what is kept of it: the last answer, and a short history for charts and rates.
// One request of a path is under way at a time, so a slow server is asked less often and never piled up on.

const KEY = "millpond-api-key";
const KEPT = 300;

export class Unauthorized extends Error {}
export class NoAnswer extends Error {}

export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

export async function ask(path, { body } = {}) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST", headers, body, cache: "no-store", redirect: "error",
      signal: AbortSignal.timeout(60000),
    });
  } catch {
    throw new NoAnswer("The server does not answer.");
  }
  if (response.status === 401) throw new Unauthorized("An API key is needed.");
  let content;
  try {
    content = await response.json();
  } catch {
    throw new NoAnswer(`The server answered ${response.status} without JSON.`);
  }
  if (!response.ok) throw new Error(content?.error?.message ?? `The server answered ${response.status}.`);
  return content;
}

// Numbers over time, the newest last, at most KEPT of them.
export class History {
  constructor() {
    this.times = [];
    this.samples = [];
  }

  add(time, sample) {
    this.times.push(time);
    this.samples.push(sample);
    if (this.times.length > KEPT) {
      this.times.shift();
      this.samples.shift();
    }
  }

  get newest() {
    return this.samples.at(-1);
  }

  // How fast what `get` gives grew at each sample; null where it cannot be told, as after a restart of the server.
  rates(get) {
    const found = [];
    for (let at = 1; at < this.samples.length; at++) {
      const [before, now] = [get(this.samples[at - 1]), get(this.samples[at])];
      const span = (this.times[at] - this.times[at - 1]) / 1000;
      const grown = now - before;
      found.push({ time: this.times[at], value: grown >= 0 && span > 0 ? grown / span : null });
    }
    return found;
  }

  // The rate over the last few seconds, so that a number can be read before it changes.
  rate(get, seconds = 5) {
    const last = this.times.length - 1;
    if (last < 1) return null;
    let first = last - 1;
    while (first > 0 && this.times[last] - this.times[first] < seconds * 1000) first--;
    const grown = get(this.samples[last]) - get(this.samples[first]);
    const span = (this.times[last] - this.times[first]) / 1000;
    return grown >= 0 && span > 0 ? grown / span : null;
  }

  levels(get) {
    return this.samples.map((sample, at) => ({ time: this.times[at], value: get(sample) ?? null }));
  }

  // The share of one counter in the sum of two, between each two samples.
  shares(part, rest) {
    const parts = this.rates(part);
    const rests = this.rates(rest);
    return parts.map(({ time, value }, at) => {
      const all = value === null || rests[at].value === null ? 0 : value + rests[at].value;
      return { time, value: all > 0 ? value / all : null };
    });
  }
}
