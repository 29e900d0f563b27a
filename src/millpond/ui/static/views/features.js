// GroupBys and Joins: definition, plan, freshness, sizes, and a form that asks for a key and tells how it was computed.

import { ask } from "../data.js";
import { el, empty, facts, scrolling, setText, show, Table, terms } from "../dom.js";
import { bytes, NONE, number, seconds, time, value } from "../format.js";

export const title = "Features";

const KINDS = { group_by: "GroupBy", join: "Join" };
const WHOLE = new Set(["int", "long", "short", "byte"]);

function age(ms) {
  return ms === null || ms === undefined ? NONE : seconds(ms / 1000);
}

function state(target) {
  if (target.problem) return el("span", { class: "bad" }, "no batch");
  return target.is_late ? el("span", { class: "bad" }, "too old") : el("span", { class: "good" }, "fresh");
}

export function mount(root, { rest, refresh, go }) {
  let filter = "";
  let detail = null;
  const none = empty("No GroupBy or Join is served here.", "Start one with: millpond serve definitions.py --store lmdb:///path");
  const input = el("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => { filter = input.value; refresh(); } });
  const count = el("p", { class: "note" });
  const bar = el("div", { class: "bar" }, el("div", { class: "field" }, el("label", { for: "filter" }, "Filter by name"), input), count);
  const table = new Table({
    caption: "GroupBys and Joins",
    key: (target) => target.name,
    open: (target) => go(`#/features/${encodeURIComponent(target.name)}`),
    sortBy: 0,
    columns: [
      { title: "Name", get: (target) => target.name, sort: (target) => target.name },
      { title: "Kind", get: (target) => KINDS[target.kind], sort: (target) => target.kind },
      { title: "State", get: state, sort: (target) => Number(target.is_late) },
      { title: "Keys", get: (target) => target.keys.join(", ") },
      { title: "Features", numeric: true, get: (target) => number(target.features), sort: (target) => target.features },
      { title: "Batch end", numeric: true, get: (target) => age(target.batch_end_age_ms), sort: (target) => target.batch_end_age_ms },
      { title: "Landed", numeric: true, get: (target) => age(target.landing_age_ms), sort: (target) => target.landing_age_ms },
      { title: "Closed until", numeric: true, get: (target) => age(target.closing_age_ms), sort: (target) => target.closing_age_ms },
    ],
  });
  const legend = el("p", { class: "note" }, "Batch end, Landed and Closed until are ages: how long ago the batch ended, was uploaded, and up to when the stream's tiles are closed.");
  const box = el("div");
  if (rest[0]) root.append(el("p", {}, el("a", { href: "#/features" }, "← All GroupBys and Joins")), box);
  else root.append(none, bar, table.element, legend);

  return {
    path: () => (rest[0] ? `ui/features.json?name=${encodeURIComponent(rest[0])}` : `ui/features.json?filter=${encodeURIComponent(filter)}`),
    update({ targets, total, target }) {
      if (rest[0]) {
        if (!target) {
          box.replaceChildren(empty("It is not served here.", `There is no GroupBy or Join ${rest[0]}.`));
          detail = null;
          return;
        }
        if (!detail) {
          detail = new Detail(target);
          box.replaceChildren(detail.element);
        }
        detail.update(target);
        return;
      }
      show(none, total === 0 && !filter);
      show(bar, total > 0 || Boolean(filter));
      show(legend, targets.length > 0);
      show(table.element, targets.length > 0);
      setText(count, targets.length < total ? `${number(targets.length)} of ${number(total)} shown. Type a part of a name to find others.` : `${number(total)} found`);
      table.update(targets);
    },
  };
}

class Detail {
  constructor(target) {
    this.fresh = el("div");
    this.problem = el("p", { class: "bad" });
    const plain = (caption, heads, rows) => scrolling(caption, el("table", {}, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...rows.map(([first, ...others]) => el("tr", {}, el("th", { scope: "row" }, first), ...others.map((each) => el("td", {}, each)))))));
    this.element = el("div", {},
      el("section", { class: "panel", "aria-label": "Freshness" }, el("h2", {}, `${KINDS[target.kind]} ${target.name}`), this.problem, this.fresh),
      new Asking(target).element,
      el("section", { class: "panel", "aria-label": "Definition" }, el("h2", {}, "Definition"),
        terms(target.definition),
        el("h3", {}, "Features"), plain("Features", ["Feature", "Type"], target.feature_types)),
      el("section", { class: "panel", "aria-label": "Plan" }, el("h2", {}, "Plan"),
        ...target.plans.map(([name, text]) => el("div", {}, target.plans.length > 1 ? el("h3", {}, name) : null, el("pre", { tabindex: "0" }, text))),
        target.sizes.length ? el("h3", {}, "Bytes of a key in the store") : null,
        target.sizes.length ? plain("Bytes of a key in the store", ["GroupBy", "A tile of one event", "A batch row of one event", "A full batch row"],
          target.sizes.map((row) => [row[0], ...row.slice(1).map(bytes)])) : null));
  }

  update(target) {
    setText(this.problem, target.problem ?? "");
    show(this.problem, Boolean(target.problem));
    this.fresh.replaceChildren(...target.freshness.map((part) => el("div", {},
      target.freshness.length > 1 ? el("h3", {}, part.group_by) : null,
      facts([
        ["Batch end", `${time(part.batch_end_ms)} (${age(part.batch_end_age_ms)} ago)`],
        ["Landed", `${time(part.batch_landing_ms)} (${age(part.landing_age_ms)} ago)`],
        ["Tiles closed until", part.closing_age_ms === null ? "no stream has told" : `${age(part.closing_age_ms)} ago`],
        ["Answers", part.is_late ? "batch too old for every window" : part.batch_end_ms === null ? "no batch" : "every window exactly"],
      ]))));
  }
}

// The form that asks for one key.
class Asking {
  constructor(target) {
    this.target = target;
    this.fields = [];
    const field = (group, name, type) => {
      const id = `${group}-${name}`;
      const input = el("input", { id, autocomplete: "off", spellcheck: "false" });
      this.fields.push({ group, name, type, input });
      return el("div", { class: "field" }, el("label", { for: id }, `${name} (${type})`), input);
    };
    this.answer = el("div", { "aria-live": "polite" });
    this.at = el("input", { id: "asked-at", type: "datetime-local", step: "1" });
    this.element = el("section", { class: "panel", "aria-label": "Ask for a key" }, el("h2", {}, "Ask for a key"),
      el("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
        ...Object.entries(target.key_types).map(([name, type]) => field("keys", name, type)),
        ...Object.entries(target.context_types).map(([name, type]) => field("context", name, type)),
        el("div", { class: "field" }, el("label", { for: "asked-at" }, "As of (UTC; empty: now)"), this.at),
        el("button", { type: "submit", class: "primary" }, "Ask")),
      this.answer);
  }

  async ask() {
    const objects = { keys: [], context: [] };
    for (const { group, name, type, input } of this.fields) objects[group].push(`${JSON.stringify(name)}:${json(input.value, type)}`);
    const parts = [`"keys":{${objects.keys}}`];
    if (objects.context.length) parts.push(`"context":{${objects.context}}`);
    if (this.at.value) parts.push(`"at":${Date.parse(`${this.at.value}Z`)}`);
    try {
      const { results } = await ask(`v1/fetch/${encodeURIComponent(this.target.name)}`, { body: `{"requests":[{${parts}}],"explain":true}` });
      this.answer.replaceChildren(answered(results[0]));
    } catch (error) {
      this.answer.replaceChildren(el("p", { class: "bad" }, error.message));
    }
  }
}

// What was typed, as the JSON of a value of a type. Whole numbers keep all their digits.
function json(text, type) {
  if (text === "" && type !== "string") return "null";
  if (WHOLE.has(type) && /^-?\d+$/.test(text)) return text;
  if (type === "boolean" || type.includes("<") || ((type === "double" || type === "float") && text.trim() !== "" && Number.isFinite(Number(text)))) return text;
  return JSON.stringify(text);
}

function answered(result) {
  const names = [...new Set([...Object.keys(result.features), ...Object.keys(result.explain ?? {}), ...Object.keys(result.states ?? {})])];
  const table = new Table({
    caption: "Values",
    key: (row) => row.name,
    columns: [
      { title: "Feature", get: (row) => row.name },
      { title: "Value", class: "mono", get: (row) => row.text },
      { title: "State", class: "short", get: (row) => row.state },
      { title: "How it was computed", get: (row) => row.how },
    ],
  });
  let above = null;
  table.update(names.map((name) => {
    const said = how(result.explain?.[name] ?? {}, result.errors?.[name]);
    const text = said === above ? el("span", { class: "note" }, "as above") : said;
    above = said;
    const state = result.states?.[name] ?? (name in result.features ? "present" : "unavailable");
    return {
      name,
      text: name in result.features ? value(result.features[name]) : NONE,
      state: el("span", { class: state === "unavailable" ? "bad" : null }, state),
      how: text,
    };
  }));
  const errors = Object.entries(result.errors ?? {});
  return el("div", {}, el("p", {}, `As of ${time(result.at)}.`), table.element,
    ...errors.map(([name, text]) => el("p", { class: "bad" }, `${name}: ${text}`)));
}

// Where a value comes from, in sentences.
function how(explain, error) {
  const said = [];
  if (error) said.push(error);
  if (explain.derived_from) said.push(`Derived from ${explain.derived_from.join(", ")}.`);
  if (explain.batch_row) {
    const batch = `the batch that ended ${time(explain.batch_end_ms)}`;
    said.push(explain.batch_row === "absent" ? `The key is not in ${batch}.` : `Row of ${batch}, from the ${explain.batch_row}.`);
  }
  if (explain.tiles) said.push(`${number(explain.tiles)} tiles, ${number(explain.tiles_read)} of them read now.`);
  else if (explain.tiles === 0) said.push("No tiles.");
  if (explain.newest_event_before_ms) said.push(`Its newest event came before ${time(explain.newest_event_before_ms)}.`);
  if (explain.is_bound) said.push("The value is only a bound: there are more distinct values than are kept.");
  for (const reason of [explain.unavailable, explain.reason]) if (reason && reason !== error) said.push(reason);
  return said.join(" ") || NONE;
}
