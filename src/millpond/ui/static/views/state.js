// Checkpoints and savepoints: versions, sizes, the first rows of a state, a search by key, and what changed since a version.

import { ask } from "../data.js";
import { el, empty, setText, show, Table } from "../dom.js";
import { bytes, NONE, number, value } from "../format.js";

export const title = "Checkpoints and savepoints";
export const label = "Stored state";

export function mount(root, { rest }) {
  const none = empty("No checkpoint or savepoint is known here.",
    "millpond ui --state LOCATION shows those that you name. Beside a Spark driver, the checkpoints of its queries are here by themselves.");
  const list = new Table({
    caption: "Locations",
    key: (location) => location.name,
    open: (location) => { picked.open(location); },
    columns: [
      { title: "Location", get: (location) => location.name },
      { title: "Kind", get: (location) => location.kind },
      { title: "Versions", get: (location) => location.versions ?? NONE },
      { title: "States", numeric: true, get: (location) => number(location.states.length) },
      { title: "Rows", numeric: true, get: (location) => number(location.rows) },
      { title: "Size", numeric: true, get: (location) => bytes(location.bytes) },
      { title: "Problem", get: (location) => (location.problem ? el("span", { class: "bad" }, location.problem) : NONE) },
    ],
  });
  const picked = new Picked();
  root.append(none, list.element, picked.element);
  return {
    path: () => "ui/state.json",
    update({ locations }) {
      show(none, locations.length === 0);
      show(list.element, locations.length > 0);
      list.update(locations);
      if (!picked.location && locations.length) {
        const first = locations.find((location) => location.name === rest[0]) ?? locations[0];
        list.choose(first.name);
        picked.open(first);
      }
    },
  };
}

class Picked {
  constructor() {
    this.location = null;
    this.heading = el("h2");
    this.states = new Table({
      caption: "States",
      key: (state) => `${state.operator ?? ""}/${state.name}`,
      open: (state) => { this.state.value = this.key(state); this.ask(); },
      columns: [
        { title: "State", get: (state) => state.name },
        { title: "Operator", get: (state) => (state.operator === null ? NONE : `${state.operator} (${state.operator_name})`) },
        { title: "Declared", class: "mono", get: (state) => state.declared },
        { title: "Rows", numeric: true, get: (state) => number(state.rows) },
        { title: "Size", numeric: true, get: (state) => bytes(state.bytes) },
      ],
    });
    this.state = el("select", { id: "state-name" });
    this.version = el("input", { id: "state-version", inputmode: "numeric", pattern: "[0-9]*", size: "8", placeholder: "newest" });
    this.since = el("input", { id: "state-since", inputmode: "numeric", pattern: "[0-9]*", size: "8", placeholder: "no diff" });
    this.search = el("input", { id: "state-search", type: "search", autocomplete: "off" });
    const field = (label, input) => el("div", { class: "field" }, el("label", { for: input.id }, label), input);
    this.said = el("p", { class: "note", role: "status" });
    this.rows = el("div");
    this.element = el("section", { class: "panel", "aria-label": "Stored state", hidden: true }, this.heading, this.states.element,
      el("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); this.ask(); } },
        field("State", this.state), field("Version", this.version), field("Changes since version", this.since),
        field("Key contains", this.search), el("button", { type: "submit", class: "primary" }, "Show rows")),
      this.said, this.rows);
  }

  key(state) {
    return JSON.stringify([state.operator, state.name]);
  }

  open(location) {
    this.location = location;
    show(this.element, true);
    setText(this.heading, location.name);
    this.states.update(location.states);
    this.state.replaceChildren(...location.states.map((state) =>
      el("option", { value: this.key(state) }, state.operator === null ? state.name : `${state.name} of operator ${state.operator}`)));
    show(this.states.element, location.states.length > 0);
    this.rows.replaceChildren();
    setText(this.said, "");
  }

  async ask() {
    if (!this.state.value) return;
    const [operator, name] = JSON.parse(this.state.value);
    const query = new URLSearchParams({ location: this.location.name, state: name });
    if (operator !== null) query.set("operator", operator);
    for (const part of ["version", "since", "search"]) if (this[part].value) query.set(part, this[part].value);
    setText(this.said, "Reading …");
    this.rows.replaceChildren();
    try {
      const { columns, rows, more } = await ask(`ui/state.json?${query}`);
      const what = `${this.since.value ? "change" : "row"}${rows.length === 1 ? "" : "s"}`;
      setText(this.said, rows.length ? `${more ? "The first " : ""}${number(rows.length)} ${what}${more ? "; there are more." : "."}` : `No ${what}.`);
      if (!rows.length) return;
      const numeric = columns.map((_, at) => rows.every((row) => typeof row[at] === "number" || row[at] === null));
      const table = new Table({
        caption: `Rows of ${name}`, key: (row) => row.at,
        columns: columns.map((column, at) => ({ title: column, numeric: numeric[at], get: (row) => value(row.cells[at]), sort: (row) => row.cells[at] })),
      });
      table.update(rows.map((cells, at) => ({ at, cells })));
      this.rows.replaceChildren(table.element);
    } catch (error) {
      setText(this.said, error.message);
    }
  }
}
