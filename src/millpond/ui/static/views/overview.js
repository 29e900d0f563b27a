// The data path with live numbers at each hop, and what needs attention.

import { Sparkline, TimeChart } from "../charts.js";
import { el, setText, show } from "../dom.js";
import { bytes, NONE, number, percent, rate, seconds } from "../format.js";

export const title = "Overview";

// The sum of the samples of a metric, of those with these labels.
export function total(sample, name, ...labels) {
  const of = sample?.metrics[name];
  if (!of) return null;
  let sum = 0;
  for (const [key, value] of Object.entries(of)) if (labels.every((label) => key.split(",").includes(label))) sum += value;
  return sum;
}

function zero(value) {
  return value ?? 0;
}

// The bound under which a share of the observations of a histogram lie, between two samples.
export function quantile(before, now, name, share, label) {
  const [of, was] = [now?.metrics[`${name}_bucket`], before?.metrics[`${name}_bucket`] ?? {}];
  if (!of) return null;
  const buckets = Object.entries(of)
    .map(([key, value]) => ({ labels: key.split(","), value: value - (was[key] ?? 0) }))
    .filter(({ labels }) => !label || labels.includes(label))
    .map(({ labels, value }) => ({ bound: labels.find((each) => each.startsWith("le=")).slice(3), value }))
    .map(({ bound, value }) => ({ bound: bound === "+Inf" ? Infinity : Number(bound), value }))
    .sort((one, other) => one.bound - other.bound);
  const all = buckets.at(-1)?.value ?? 0;
  if (!(all > 0)) return null;
  return buckets.find(({ value }) => value >= share * all).bound;
}

const REQUESTS = "millpond_fetcher_requests_total";
const CACHE = "millpond_cache_requests_total";
const LOOKUPS = "millpond_lookup_requests_total";
const DURATION = "millpond_fetcher_duration_seconds";

function share(part, rest) {
  return part + rest > 0 ? part / (part + rest) : null;
}

function hits(sample, name) {
  return share(zero(total(sample, name, "result=hit")), zero(total(sample, name, "result=miss")));
}

// Each hop: whether it is here, its number, some facts, and the counter of its line.
const HOPS = [
  {
    name: "lookup", title: "Lookup join", view: "caches", where: "a stream's lookup tables",
    here: (now) => total(now, LOOKUPS) !== null,
    grows: (now) => zero(total(now, LOOKUPS)), what: "keys",
    facts: (now) => [`${percent(hits(now, LOOKUPS))} hits`, `${number(total(now, "millpond_lookup_cached_records"))} keys cached`],
  },
  {
    name: "keyed", title: "Keyed state", view: "queries", where: "a query of keyed()",
    here: (now) => total(now, "millpond_keyed_rows_total") !== null,
    grows: (now) => zero(total(now, "millpond_keyed_rows_total")), what: "rows",
    facts: (now) => [
      `${number(total(now, "millpond_keyed_state_rows"))} rows of state, ${bytes(total(now, "millpond_keyed_state_bytes"))}`,
      `${number(total(now, "millpond_keyed_batches_total"))} batches`,
    ],
  },
  {
    name: "tiles", title: "Tiles", view: "features", where: "a stream of tiles",
    here: (now) => total(now, "millpond_stream_events_read_total") !== null,
    grows: (now) => zero(total(now, "millpond_stream_events_read_total")), what: "events",
    facts: (now) => [`${number(total(now, "millpond_stream_tiles_written_total"))} tiles written`,
      `${number(total(now, "millpond_stream_events_late_total"))} late events`],
  },
  {
    name: "upload", title: "Batch upload", view: "features", where: "an upload",
    here: (now) => total(now, "millpond_upload_rows_total") !== null || total(now, "millpond_fetcher_landing_age_seconds") !== null,
    grows: null, what: "",
    facts: (now) => {
      const [landed, written] = [total(now, "millpond_fetcher_landing_age_seconds"), total(now, "millpond_upload_bytes_total")];
      return [...(landed === null ? [] : [`last landed ${seconds(landed)} ago`]), ...(written === null ? [] : [`${bytes(written)} written`])];
    },
    number: (now) => {
      const [age, rows] = [total(now, "millpond_fetcher_batch_end_age_seconds"), total(now, "millpond_upload_rows_total")];
      return age === null ? `${number(rows)} rows` : `${seconds(age)} old`;
    },
  },
  {
    name: "store", title: "KV store", view: "features", where: "a fetcher",
    here: (now) => total(now, "millpond_fetcher_store_calls_total") !== null,
    grows: (now) => zero(total(now, "millpond_fetcher_store_calls_total")), what: "calls",
    facts: (now, history) => [
      `${bytes(history.rate((each) => zero(total(each, "millpond_fetcher_read_bytes_total"))))}/s read`,
      `${number(total(now, "millpond_fetcher_rows_read_total"))} rows in all`,
    ],
  },
  {
    name: "fetcher", title: "Fetcher", view: "caches", where: "millpond serve",
    here: (now) => total(now, REQUESTS) !== null,
    grows: (now) => zero(total(now, REQUESTS)), what: "keys",
    facts: (now, history) => {
      const before = history.samples.at(-61) ?? history.samples[0];
      return [
        total(now, CACHE) === null ? "no cache is enabled" : `${percent(hits(now, CACHE))} hits in caches`,
        `half within ${seconds(quantile(before, now, DURATION, 0.5, "phase=fetch"))}, 99 % within ${seconds(quantile(before, now, DURATION, 0.99, "phase=fetch"))}`,
        `${bytes(total(now, "millpond_process_memory_bytes"))} of memory`,
      ];
    },
  },
];

// What somebody should look at, worst first: [level, text].
export function findings(history) {
  const now = history.newest;
  const found = [];
  const recent = (name, ...labels) => history.rate((each) => zero(total(each, name, ...labels)), 30) ?? 0;
  if (recent("millpond_fetcher_info_refreshes_total", "result=failure") > 0) {
    found.push(["bad", "The store does not answer every read. See the log of the server, and the store itself."]);
  }
  const unavailable = recent("millpond_fetcher_values_total", "state=unavailable");
  if (unavailable > 0) found.push(["bad", `${rate(unavailable)} values are unavailable. Ask for a key under Features: the answer says why.`]);
  const late = total(now, "millpond_fetcher_late_batches");
  if (late > 0) found.push(["bad", `The batch of ${number(late)} GroupBys is too old to answer every window. Run their upload.`]);
  const failed = recent("millpond_http_requests_total", "status=500") + recent("millpond_http_requests_total", "status=503");
  if (failed > 0) found.push(["bad", `${rate(failed)} calls fail with 500 or 503. See the log of the server.`]);
  if (recent("millpond_http_requests_total", "status=429") > 0) found.push(["warn", "Calls are refused because too many run at once. Add processes, or raise --max-in-flight."]);
  const [evicted, missed] = [recent("millpond_cache_evictions_total", "cause=size"), recent(CACHE, "result=miss")];
  if (evicted > 0 && missed > 0) found.push(["warn", `Caches evict ${rate(evicted)} entries because they are full. Caches shows which are too small.`]);
  if (recent("millpond_keyed_dead_letters_total") > 0) found.push(["warn", `Records are set aside as dead letters: ${rate(recent("millpond_keyed_dead_letters_total"))}. See Keyed queries.`]);
  if (recent("millpond_keyed_late_rows_total") > 0) found.push(["warn", `Rows are dropped because they are late: ${rate(recent("millpond_keyed_late_rows_total"))}. See Keyed queries.`]);
  for (const each of now.notices) found.push(["warn", each]);
  if (!found.length) found.push(["good", "Nothing needs attention."]);
  return found;
}

export function mount(root, { history }) {
  const hops = HOPS.map((hop) => {
    const parts = { number: el("p", { class: "hop-number" }), facts: el("ul"), spark: new Sparkline() };
    parts.element = el("li", { class: `hop hop-${hop.name}` },
      el("h2", {}, el("a", { href: `#/${hop.view}` }, hop.title)), parts.number, parts.facts, parts.spark.element);
    return { hop, parts };
  });
  const attention = el("ul", { class: "attention" });
  const calls = new TimeChart("Keys asked for", rate);
  const times = new TimeChart("99 % of fetches within", seconds);
  const rows = new TimeChart("Rows of keyed state", rate);
  const memory = new TimeChart("Memory of the process", bytes);
  const charts = el("div", { class: "charts panel" }, calls.element, times.element, rows.element, memory.element);
  root.append(
    el("ol", { class: "path", "aria-label": "The data path" }, ...hops.map(({ parts }) => parts.element)),
    el("section", { class: "panel", "aria-label": "Attention" }, el("h2", {}, "What needs attention"), attention), charts);

  return {
    update() {
      const now = history.newest;
      for (const { hop, parts } of hops) {
        const here = hop.here(now);
        parts.element.toggleAttribute("data-idle", !here);
        show(parts.spark.element, here && hop.grows !== null);
        const said = here
          ? hop.facts(now, history)
          : [`Shown by the process that runs ${hop.where}.`];
        setText(parts.number, !here ? "Not here" : hop.number ? hop.number(now) : speed(history, hop));
        if (parts.facts.children.length !== said.length) parts.facts.replaceChildren(...said.map(() => el("li")));
        said.forEach((text, at) => setText(parts.facts.children[at], text));
        if (here && hop.grows) parts.spark.update(history.rates(hop.grows));
      }
      const found = findings(history);
      if (attention.dataset.found !== JSON.stringify(found)) {
        attention.dataset.found = JSON.stringify(found);
        attention.replaceChildren(...found.map(([level, text]) => el("li", { "data-level": level }, text)));
      }
      const fetches = total(now, REQUESTS) !== null;
      const keyed = total(now, "millpond_keyed_rows_total") !== null;
      show(calls.element, fetches);
      show(times.element, fetches);
      show(rows.element, keyed);
      if (fetches) {
        calls.update([{ name: "keys", points: history.rates((each) => zero(total(each, REQUESTS))) }]);
        times.update([{ name: "99 %", points: history.times.map((time, at) => ({
          time, value: finite(quantile(history.samples[Math.max(0, at - 10)], history.samples[at], DURATION, 0.99, "phase=fetch")),
        })) }]);
      }
      if (keyed) rows.update([{ name: "rows", points: history.rates((each) => zero(total(each, "millpond_keyed_rows_total"))) }]);
      const remembers = total(now, "millpond_process_memory_bytes") !== null;
      show(memory.element, remembers);
      show(charts, fetches || keyed || remembers);
      memory.update([{ name: "memory", points: history.levels((each) => total(each, "millpond_process_memory_bytes")) }]);
    },
  };
}

function speed(history, hop) {
  const found = history.rate(hop.grows);
  return found === null ? NONE : `${number(found)} ${hop.what}/s`;
}

function finite(value) {
  return Number.isFinite(value) ? value : null;
}
