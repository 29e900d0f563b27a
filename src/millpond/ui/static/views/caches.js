// Every cache: hit rate over time, size, evictions by cause, the hit-rate curve with the present size, the advice.

import { CurveChart, TimeChart } from "../charts.js";
import { History } from "../data.js";
import { el, empty, setText, show, Table } from "../dom.js";
import { bytes, NONE, number, percent, rate } from "../format.js";

export const title = "Caches";

// By cache: what was seen of it since the page was opened.
const seen = new Map();

function hitRate(cache) {
  return cache.hits + cache.misses > 0 ? cache.hits / (cache.hits + cache.misses) : null;
}

function bound(cache) {
  if (cache.max_bytes !== null) return bytes(cache.max_bytes);
  return cache.max_entries !== null ? `${number(cache.max_entries)} entries` : NONE;
}

function fill(cache) {
  if (cache.max_bytes && cache.bytes !== null) return cache.bytes / cache.max_bytes;
  return cache.max_entries && cache.entries !== null ? cache.entries / cache.max_entries : null;
}

// What the numbers of a cache mean, in one word and one sentence.
export function verdict(cache) {
  const asked = cache.hits + cache.misses;
  const rateNow = hitRate(cache);
  if (!asked) return ["unused", "Nobody has asked this cache yet."];
  const full = (fill(cache) ?? 1) > 0.9 && cache.evictions > 0;
  if (full && rateNow < 0.9) {
    return ["too small", `It is full, and has evicted ${number(cache.evictions)} entries, while ${percent(1 - rateNow)} of requests missed. Give it a larger size.`];
  }
  if (rateNow < 0.05 && asked > 1000) return ["little use", "Keys hardly come twice: this cache saves next to nothing."];
  return ["fine", full ? "It is full, and nearly all requests are hits." : "It has room for more entries."];
}

const LEVELS = { "too small": "bad", "little use": "warn", fine: "good", unused: "note" };

function verdictNode(cache) {
  const [word] = verdict(cache);
  return el("span", { class: LEVELS[word] }, word);
}

export function mount(root, { rest, refresh }) {
  let chosen = rest[0] ?? null;
  let filter = "";
  const detail = new Detail();
  const table = new Table({
    caption: "Caches",
    key: (cache) => cache.name,
    open: (cache) => { chosen = cache.name; detail.update(cache); detail.element.scrollIntoView({ block: "nearest" }); },
    sortBy: 4,
    descending: true,
    columns: [
      { title: "Cache", get: (cache) => cache.name, sort: (cache) => cache.name },
      { title: "Verdict", get: verdictNode, sort: (cache) => verdict(cache)[0] },
      { title: "Hit rate", numeric: true, get: (cache) => percent(hitRate(cache)), sort: hitRate },
      { title: "Requests", numeric: true, get: (cache) => number(cache.hits + cache.misses), sort: (cache) => cache.hits + cache.misses },
      { title: "Misses", numeric: true, get: (cache) => number(cache.misses), sort: (cache) => cache.misses },
      { title: "Evicted for room", numeric: true, get: (cache) => number(cache.evictions), sort: (cache) => cache.evictions },
      { title: "Evicted for age", numeric: true, get: (cache) => number(cache.expirations), sort: (cache) => cache.expirations },
      { title: "Entries", numeric: true, get: (cache) => number(cache.entries), sort: (cache) => cache.entries },
      { title: "Size", numeric: true, get: (cache) => bytes(cache.bytes), sort: (cache) => cache.bytes },
      { title: "Bound", numeric: true, get: bound, sort: (cache) => cache.max_bytes ?? cache.max_entries },
    ],
  });
  const none = empty("No cache is in use.", "A fetcher caches a GroupBy with enable_fetcher_caching=True, or with --fetcher-caching and --fetcher-cache-size of millpond serve.",
    "Lookup tables and keyed state show their caches in the page of the Spark driver that runs them.");
  const count = el("p", { class: "note" });
  const input = el("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => { filter = input.value; refresh(); } });
  const bar = el("div", { class: "bar" }, el("div", { class: "field" }, el("label", { for: "filter" }, "Filter by name"), input), count);
  root.append(none, bar, table.element, detail.element);

  return {
    path: () => `ui/caches.json?filter=${encodeURIComponent(filter)}`,
    update({ caches, total }) {
      const now = Date.now();
      for (const cache of caches) {
        if (!seen.has(cache.name)) seen.set(cache.name, new History());
        seen.get(cache.name).add(now, cache);
      }
      show(none, total === 0 && !filter);
      show(bar, total > 0 || Boolean(filter));
      show(table.element, caches.length > 0);
      setText(count, caches.length < total ? `${number(caches.length)} of ${number(total)} shown, those with most misses.` : `${number(total)} caches`);
      table.update(caches);
      const shown = caches.find((cache) => cache.name === chosen) ?? caches.toSorted((one, other) => other.misses - one.misses)[0];
      if (shown) {
        table.choose(shown.name);
        detail.update(shown);
      }
      show(detail.element, Boolean(shown));
    },
  };
}

class Detail {
  constructor() {
    this.heading = el("h2");
    this.verdict = el("p");
    this.hits = new TimeChart("Hit rate", percent, { most: 1 });
    this.size = new TimeChart("Size", bytes);
    this.entries = new TimeChart("Entries", number);
    this.gone = new TimeChart("Evictions by cause", rate);
    this.curve = new CurveChart("Hit-rate curve", percent, number);
    this.noCurve = el("p", { class: "note" }, "Hit-rate curve: not recorded.");
    this.advice = el("div");
    this.element = el("section", { class: "panel", "aria-label": "The chosen cache" }, this.heading, this.verdict,
      el("div", { class: "charts" }, this.hits.element, this.size.element, this.entries.element, this.gone.element, this.curve.element),
      this.noCurve, el("h3", {}, "Advice"), this.advice);
  }

  update(cache) {
    const history = seen.get(cache.name);
    setText(this.heading, cache.name);
    setText(this.verdict, verdict(cache)[1]);
    this.hits.update([{ name: "hit rate", points: history.shares((each) => each.hits, (each) => each.misses) }]);
    show(this.size.element, cache.bytes !== null);
    this.size.update([{ name: "size", points: history.levels((each) => each.bytes) }]);
    this.entries.update([{ name: "entries", points: history.levels((each) => each.entries) }]);
    this.gone.update([
      { name: "room", points: history.rates((each) => each.evictions) },
      { name: "age", points: history.rates((each) => each.expirations) },
    ]);
    show(this.curve.element, cache.curve !== null);
    show(this.noCurve, cache.curve === null);
    if (cache.curve !== null) {
      this.curve.sizeFormat = cache.curve.unit === "bytes" ? bytes : (size) => `${number(size)} entries`;
      this.curve.update(cache.curve);
    }
    const said = JSON.stringify(cache.advice);
    if (this.advice.dataset.said !== said) {
      this.advice.dataset.said = said;
      this.advice.replaceChildren(...(cache.advice ?? ["Not recorded: advice comes from the hit-rate curve."]).map((text) => el("p", {}, text)));
    }
  }
}
