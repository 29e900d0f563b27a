// Keyed queries: how fast each runs, where a batch's time goes, and what each shard holds.

import { Parts, TimeChart } from "../charts.js";
import { el, empty, facts, setText, show, Table } from "../dom.js";
import { bytes, number, percent, rate, seconds, time } from "../format.js";

export const title = "Keyed queries";

const PHASES = { shuffle_seconds: "shuffle", run_seconds: "handlers", flush_seconds: "flush", commit_seconds: "commit", store_seconds: "store" };

const MEANINGS = {
  shuffle: "The operator waits for its rows. Look at the source, and at what comes before keyed().",
  handlers: "The processor's own code takes most of the time. Look into handleInputRows and its timers.",
  flush: "The state cache writes back much. Make it larger.",
  commit: "Much state changes in each batch, and encoding it takes most of the time.",
  store: "Spark's state store takes most of the time. Look at its disk, and at the checkpoint's file system.",
};

function phases(operator) {
  return Object.entries(PHASES).map(([field, name]) => ({ name, value: operator[field] }));
}

// What makes an operator slow, in a sentence.
export function slowest(operator) {
  const parts = phases(operator);
  const sum = parts.reduce((so, part) => so + part.value, 0);
  if (!(sum > 0)) return "No batch has run yet.";
  const most = parts.reduce((one, other) => (other.value > one.value ? other : one));
  return `Most of the operator's time goes to ${most.name} (${percent(most.value / sum)}). ${MEANINGS[most.name]}`;
}

// Whether one shard gets far more than the others.
export function skew(operator) {
  const rows = operator.shards.map((shard) => shard.rows);
  const sum = rows.reduce((so, each) => so + each, 0);
  const most = Math.max(...rows, 0);
  if (rows.length < 2 || sum < 1000 || most < (2 * sum) / rows.length) return "";
  const shard = operator.shards[rows.indexOf(most)].shard;
  return `Shard ${shard} gets ${percent(most / sum)} of all rows: some keys come far more often than others.`;
}

export function mount(root, { rest, go }) {
  const none = empty("No query of keyed() is known here.", "In a job, call millpond.spark.ui(spark) before the query starts, and open the URL that it gives.",
    "Or show the page of such a job here: millpond ui http://DRIVER:8766");
  const picked = el("div", { class: "bar" });
  const panels = new Map();
  const box = el("div");
  root.append(none, picked, box);
  return {
    path: () => "ui/queries.json",
    update({ queries }) {
      show(none, queries.length === 0);
      show(picked, queries.length > 1);
      const chosen = queries.find((query) => query.id === rest[0]) ?? queries.find((query) => query.is_active) ?? queries[0];
      if (picked.dataset.of !== JSON.stringify(queries.map((query) => [query.id, query.name]))) {
        picked.dataset.of = JSON.stringify(queries.map((query) => [query.id, query.name]));
        const select = el("select", { id: "query", onchange: () => go(`#/queries/${encodeURIComponent(select.value)}`) },
          ...queries.map((query) => el("option", { value: query.id, selected: query === chosen }, query.name)));
        picked.replaceChildren(el("div", { class: "field" }, el("label", { for: "query" }, "Query"), select));
      }
      if (!chosen) return;
      if (!panels.has(chosen.id)) panels.set(chosen.id, new Query());
      const panel = panels.get(chosen.id);
      if (box.firstChild !== panel.element) box.replaceChildren(panel.element);
      panel.update(chosen);
    },
  };
}

class Query {
  constructor() {
    this.heading = el("h2");
    this.error = el("p", { class: "bad" });
    this.facts = el("div");
    this.speed = new TimeChart("Rows a second", rate);
    this.took = new TimeChart("Time of a batch", seconds);
    this.lag = new TimeChart("Watermark behind the newest event", seconds);
    this.phases = new Parts("Newest batch, as Spark measures it", seconds);
    this.operators = el("div");
    this.kept = [];
    this.element = el("div", {},
      el("section", { class: "panel", "aria-label": "The query" }, this.heading, this.error, this.facts, this.phases.element,
        el("div", { class: "charts" }, this.speed.element, this.took.element, this.lag.element)),
      this.operators);
  }

  update(query) {
    setText(this.heading, query.name);
    setText(this.error, query.error ?? "");
    show(this.error, Boolean(query.error));
    const newest = query.batches.at(-1) ?? null;
    this.facts.replaceChildren(facts([
      ["Now", query.is_active ? "running" : "stopped"],
      ["Batch", newest ? number(newest.batch) : "none yet"],
      ["Rows a second", rate(newest?.rows_per_second)],
      ["Batch took", seconds(newest && newest.ms / 1000)],
      ["Watermark", time(newest?.watermark_ms)],
      ["Watermark lag", seconds(newest?.lag_ms === null || !newest ? null : newest.lag_ms / 1000)],
    ]));
    show(this.phases.element, Boolean(newest));
    if (newest) this.phases.update(Object.entries(newest.phases_ms).map(([name, ms]) => ({ name, value: ms / 1000 })));
    const points = (get) => query.batches.map((batch) => ({ time: batch.time_ms, value: get(batch) }));
    this.speed.update([{ name: "rows", points: points((batch) => batch.rows_per_second) }]);
    this.took.update([{ name: "batch", points: points((batch) => batch.ms / 1000) }]);
    show(this.lag.element, newest?.lag_ms !== null && newest !== null);
    this.lag.update([{ name: "lag", points: points((batch) => (batch.lag_ms === null ? null : batch.lag_ms / 1000)) }]);
    query.operators.forEach((operator, at) => {
      if (!this.kept[at]) {
        this.kept[at] = new Operator();
        this.operators.append(this.kept[at].element);
      }
      this.kept[at].update(operator);
    });
  }
}

class Operator {
  constructor() {
    this.heading = el("h2");
    this.slowest = el("p", { class: "slowest" });
    this.skew = el("p", { class: "warn" });
    this.facts = el("div");
    this.phases = new Parts("Time in the operator so far, added up over its shards", seconds);
    this.shards = new Table({
      caption: "Shards",
      key: (shard) => shard.shard,
      sortBy: 0,
      columns: [
        { title: "Shard", get: (shard) => String(shard.shard), sort: (shard) => shard.shard },
        { title: "Rows", numeric: true, get: (shard) => number(shard.rows), sort: (shard) => shard.rows },
        ...Object.entries(PHASES).map(([field, name]) =>
          ({ title: name[0].toUpperCase() + name.slice(1), numeric: true, get: (shard) => seconds(shard[field]), sort: (shard) => shard[field] })),
        { title: "State rows", numeric: true, get: (shard) => number(shard.state_rows), sort: (shard) => shard.state_rows },
        { title: "Checkpoint", numeric: true, get: (shard) => bytes(shard.state_bytes), sort: (shard) => shard.state_bytes },
        { title: "On heap", numeric: true, get: (shard) => bytes(shard.heap_bytes), sort: (shard) => shard.heap_bytes },
        { title: "On disk", numeric: true, get: (shard) => bytes(shard.disk_bytes), sort: (shard) => shard.disk_bytes },
        { title: "Restores", numeric: true, get: (shard) => number(shard.restores), sort: (shard) => shard.restores },
        { title: "Late rows", numeric: true, get: (shard) => number(shard.late_rows), sort: (shard) => shard.late_rows },
        { title: "Dead letters", numeric: true, get: (shard) => number(shard.dead_letters), sort: (shard) => shard.dead_letters },
      ],
    });
    this.hot = new Table({
      caption: "Hottest key groups of the newest batch",
      key: (group) => group.key_group,
      sortBy: 1,
      descending: true,
      columns: [
        { title: "Key group", get: (group) => String(group.key_group), sort: (group) => group.key_group },
        { title: "Rows", numeric: true, get: (group) => number(group.rows), sort: (group) => group.rows },
        { title: "Shard", numeric: true, get: (group) => String(group.shard), sort: (group) => group.shard },
      ],
    });
    this.groups = el("ul", { class: "groups", "aria-label": "Key groups by temperature" });
    this.groupsBox = el("div", {}, el("h3", {}, "Key groups by temperature"),
      el("p", { class: "note" }, "The warmer, the more often a key group is asked for. A dashed frame: it is on disk."), this.groups);
    this.hotTitle = el("h3", {}, "Hottest key groups of the newest batch");
    this.element = el("section", { class: "panel", "aria-label": "Operator" }, this.heading, this.slowest, this.skew, this.facts, this.phases.element,
      el("h3", {}, "Shards"), this.shards.element, this.hotTitle, this.hot.element, this.groupsBox);
  }

  update(operator) {
    setText(this.heading, `Operator ${operator.name}`);
    setText(this.slowest, slowest(operator));
    setText(this.skew, skew(operator));
    const reads = operator.cache_hits + operator.cache_misses;
    this.facts.replaceChildren(facts([
      ["Batches", number(operator.batches)],
      ["Rows", number(operator.rows)],
      ["Late rows", number(operator.late_rows)],
      ["Dead letters", number(operator.dead_letters)],
      ["Restores", number(operator.restores)],
      ["State rows", number(operator.state_rows)],
      ["Checkpoint", bytes(operator.state_bytes)],
      ["State cache hits", reads ? percent(operator.cache_hits / reads) : "no cache"],
      ["Spills / loads", `${number(operator.spills)} / ${number(operator.loads)}`],
    ]));
    this.phases.update(phases(operator));
    this.shards.update(operator.shards);
    show(this.hotTitle, operator.hot_groups.length > 0);
    show(this.hot.element, operator.hot_groups.length > 0);
    this.hot.update(operator.hot_groups);
    show(this.groupsBox, operator.groups.length > 0);
    this.draw(operator.groups);
  }

  draw(groups) {
    const most = Math.max(...groups.map((group) => group.rate), 1e-9);
    while (this.groups.children.length < groups.length) this.groups.append(el("li"));
    while (this.groups.children.length > groups.length) this.groups.lastChild.remove();
    groups.forEach((group, at) => {
      const item = this.groups.children[at];
      const heat = group.rate > 0 ? Math.min(4, 1 + Math.floor((group.rate / most) * 3.99)) : 0;
      item.className = `heat-${heat}${group.place === "disk" ? " on-disk" : ""}`;
      item.title = `Key group ${group.key_group}: ${group.place}, ${bytes(group.bytes)}, ${rate(group.rate)}`;
      setText(item, String(group.key_group));
    });
  }
}
