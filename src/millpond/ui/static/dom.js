// Elements, and tables whose rows are kept from update to update.
// Text is only ever set as text: a name that looks like markup stays a name.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, shown) {
  node.toggleAttribute("hidden", !shown);
}

// What to say where there is nothing to show: what is missing, and how to have it.
export function empty(title, ...how) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), ...how.map((part) => el("p", {}, part)));
}

// A wide thing that scrolls by itself, also with the keyboard.
export function scrolling(label, ...children) {
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, ...children);
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, ...pairs.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
}

export function terms(pairs) {
  return el("dl", { class: "terms" }, ...pairs.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)]));
}

// A table that is told its rows again and again, and changes only the cells that differ.
//   columns: [{ title, get(row) → text or element, sort(row) → value, numeric, unit }]
//   key(row): which row it is; open(row): called when its first cell is chosen.
export class Table {
  constructor({ caption, columns, key, open, sortBy, descending }) {
    Object.assign(this, { columns, key, open, sortBy, descending: descending ?? false, rows: [], kept: new Map() });
    this.chosen = null;
    this.heads = columns.map((column, at) =>
      el("th", { scope: "col", class: column.numeric ? "number" : null },
        column.sort ? el("button", { type: "button", class: "sort", onclick: () => this.sort(at) }, column.title) : column.title));
    this.body = el("tbody");
    this.element = scrolling(caption,
      el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...this.heads)), this.body));
  }

  sort(at) {
    this.descending = this.sortBy === at ? !this.descending : Boolean(this.columns[at].numeric);
    this.sortBy = at;
    this.update(this.rows);
  }

  choose(key) {
    this.chosen = key;
    for (const [each, { row }] of this.kept) row.toggleAttribute("data-chosen", each === key);
  }

  update(rows) {
    this.rows = rows;
    this.heads.forEach((head, at) => {
      if (this.columns[at].sort) {
        head.setAttribute("aria-sort", at !== this.sortBy ? "none" : this.descending ? "descending" : "ascending");
      }
    });
    const seen = new Set();
    let place = this.body.firstChild;
    for (const row of this.sorted(rows)) {
      const key = this.key(row);
      seen.add(key);
      let kept = this.kept.get(key);
      if (kept === undefined) this.kept.set(key, (kept = this.newRow(key)));
      kept.data = row;
      this.columns.forEach((column, at) => fill(kept.cells[at], column.get(row)));
      if (kept.row !== place) this.body.insertBefore(kept.row, place);
      else place = place.nextSibling;
    }
    for (const [key, kept] of this.kept) {
      if (!seen.has(key)) {
        kept.row.remove();
        this.kept.delete(key);
      }
    }
  }

  sorted(rows) {
    const by = this.columns[this.sortBy]?.sort;
    if (!by) return rows;
    const sign = this.descending ? -1 : 1;
    return [...rows].sort((one, other) => {
      const [a, b] = [by(one), by(other)];
      if (a === b) return 0;
      if (a === null || a === undefined) return 1;
      if (b === null || b === undefined) return -1;
      return (a < b ? -1 : 1) * sign;
    });
  }

  newRow(key) {
    const kept = { cells: [] };
    const cells = this.columns.map((column, at) => {
      const attributes = { class: column.numeric ? "number" : column.class ?? null };
      if (at > 0) {
        const cell = el("td", attributes);
        kept.cells.push(cell);
        return cell;
      }
      const inner = this.open
        ? el("button", { type: "button", class: "open", onclick: () => { this.choose(key); this.open(kept.data); } })
        : el("span");
      kept.cells.push(inner);
      return el("th", { scope: "row", ...attributes }, inner);
    });
    kept.row = el("tr", { "data-chosen": key === this.chosen ? true : null }, ...cells);
    return kept;
  }
}

function fill(cell, content) {
  if (content instanceof Node) cell.replaceChildren(content);
  else setText(cell, content);
}
