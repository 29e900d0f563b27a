// Charts as SVG: lines over time, a curve with a mark, and bars of parts. No library: at most some hundred points each.

import { el, svg, setText } from "./dom.js";
import { clock, number } from "./format.js";

const WIDTH = 320;
const HEIGHT = 120;
const SIDE = { left: 52, right: 10, top: 8, bottom: 20 };

function ticks(most, unitless) {
  if (!(most > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(most));
  const step = [0.2, 0.5, 1, 2, 5, 10].map((each) => each * power).find((each) => most / each <= 3) ?? power;
  const found = [];
  for (let at = 0; at < most + step * 0.999; at += step) found.push(unitless ? Math.round(at) : at);
  return [...new Set(found)];
}

function path(points) {
  let text = "";
  let pen = "M";
  for (const point of points) {
    if (point === null) pen = "M";
    else {
      text += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = "L";
    }
  }
  return text;
}

class Frame {
  constructor(title, format) {
    this.format = format;
    this.grid = svg("g", { class: "grid" });
    this.lines = svg("g");
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": title }, this.grid, this.lines);
    this.title = title;
    this.now = el("span", { class: "chart-now" });
    this.legend = el("span", { class: "legend" });
    this.element = el("figure", {}, el("figcaption", {}, el("span", {}, title), this.legend, this.now), this.svg);
    this.drawn = "";
    this.names = "";
  }

  // The scales, with their labels drawn; `across` labels the two ends of the horizontal axis.
  scale(low, high, most, across, ends) {
    const marks = ticks(most);
    const top = marks.at(-1);
    const x = (value) => SIDE.left + ((value - low) / (high - low || 1)) * (WIDTH - SIDE.left - SIDE.right);
    const y = (value) => HEIGHT - SIDE.bottom - (value / top) * (HEIGHT - SIDE.top - SIDE.bottom);
    const wanted = JSON.stringify([marks, ends]);
    if (wanted !== this.drawn) {
      this.drawn = wanted;
      this.grid.replaceChildren(
        ...marks.flatMap((mark) => [
          svg("line", { x1: SIDE.left, x2: WIDTH - SIDE.right, y1: y(mark), y2: y(mark) }),
          svg("text", { x: SIDE.left - 6, y: y(mark) + 3.5, "text-anchor": "end" }, this.format(mark)),
        ]),
        svg("text", { x: SIDE.left, y: HEIGHT - 5 }, ends[0]),
        svg("text", { x: WIDTH - SIDE.right, y: HEIGHT - 5, "text-anchor": "end" }, ends[1]));
    }
    return { x, y };
  }

  name(series) {
    const wanted = series.length > 1 ? series.map((each) => each.name) : [];
    if (JSON.stringify(wanted) !== this.names) {
      this.names = JSON.stringify(wanted);
      this.legend.replaceChildren(...wanted.map((name, at) => el("span", { class: `key series-${at + 1}` }, name)));
    }
  }

  say(text) {
    setText(this.now, text);
    const label = `${this.title}: ${text}`;
    if (this.svg.getAttribute("aria-label") !== label) this.svg.setAttribute("aria-label", label);
  }
}

// Series over time. `update([{ name, points: [{ time, value }] }])`
export class TimeChart {
  constructor(title, format = number, { most = 0 } = {}) {
    this.frame = new Frame(title, format);
    this.element = this.frame.element;
    this.format = format;
    this.most = most;
  }

  update(series) {
    const { frame, format } = this;
    frame.name(series);
    const all = series.flatMap((each) => each.points);
    const values = all.map((point) => point.value).filter((value) => value !== null);
    if (values.length < 2) {
      frame.say("collecting …");
      frame.lines.replaceChildren();
      return;
    }
    const times = all.map((point) => point.time);
    const [low, high] = [Math.min(...times), Math.max(...times)];
    const { x, y } = frame.scale(low, high, Math.max(this.most, ...values), null, [clock(low), clock(high)]);
    series.forEach((each, at) => {
      const drawn = path(each.points.map((point) => (point.value === null ? null : [x(point.time), y(point.value)])));
      const line = frame.lines.children[at] ?? frame.lines.appendChild(svg("path", { class: `line series-${at + 1}` }));
      line.setAttribute("d", drawn);
    });
    while (frame.lines.children.length > series.length) frame.lines.lastChild.remove();
    const newest = series.map((each) => {
      const last = each.points.findLast((point) => point.value !== null);
      return `${series.length > 1 ? `${each.name} ` : ""}${last ? format(last.value) : "–"}`;
    });
    frame.say(newest.join(" · "));
  }
}

// A curve over sizes, with the present size marked. `update({ sizes, lines: { name: [...] }, present })`
export class CurveChart {
  constructor(title, format, sizeFormat) {
    this.frame = new Frame(title, format);
    this.element = this.frame.element;
    this.format = format;
    this.sizeFormat = sizeFormat;
  }

  update({ sizes, lines, present }) {
    const { frame } = this;
    const series = Object.entries(lines).map(([name, values]) => ({ name, values }));
    frame.name(series);
    const high = Math.max(...sizes, present ?? 0);
    const { x, y } = frame.scale(0, high, 1, null, [this.sizeFormat(0), this.sizeFormat(high)]);
    const drawn = series.map((each, at) =>
      svg("path", { class: `line series-${at + 1}`, d: path(each.values.map((value, place) => [x(sizes[place]), y(value)])) }));
    if (present !== null && present !== undefined) {
      drawn.push(svg("line", { class: "mark", x1: x(present), x2: x(present), y1: y(0), y2: y(1) }));
      drawn.push(svg("text", { class: "mark-text", x: x(present) - 4, y: y(1) + 9, "text-anchor": "end" }, "now"));
    }
    frame.lines.replaceChildren(...drawn);
    frame.say(present === null || present === undefined ? "" : `present size ${this.sizeFormat(present)}`);
  }
}

// Parts of a whole as one bar with its legend. `update([{ name, value }])`
export class Parts {
  constructor(title, format) {
    this.format = format;
    this.bar = svg("svg", { class: "parts", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.list = el("ul", { class: "legend" });
    this.title = title;
    this.element = el("div", { class: "parts-box" }, el("p", { class: "parts-title" }, title), this.bar, this.list);
  }

  update(parts) {
    const sum = parts.reduce((so, part) => so + part.value, 0);
    while (this.bar.children.length < parts.length) {
      this.bar.append(svg("rect", { class: `fill-${this.bar.children.length + 1}`, y: 0, height: 6 }));
      this.list.append(el("li", { class: `key fill-${this.list.children.length + 1}` }));
    }
    let from = 0;
    const said = parts.map((part, at) => {
      const share = sum ? part.value / sum : 0;
      this.bar.children[at].setAttribute("x", from * 100);
      this.bar.children[at].setAttribute("width", share * 100);
      from += share;
      const text = `${part.name} ${this.format(part.value)} (${Math.round(share * 100)} %)`;
      setText(this.list.children[at], text);
      return text;
    });
    this.bar.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }
}

// A line without axes, for a card.
export class Sparkline {
  constructor() {
    this.line = svg("path", { class: "line series-1" });
    this.element = svg("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.line);
  }

  update(points) {
    const kept = points.slice(-120);
    const most = Math.max(...kept.map((point) => point.value ?? 0), 1e-9);
    const step = 100 / Math.max(kept.length - 1, 1);
    this.line.setAttribute("d", path(kept.map((point, at) => (point.value === null ? null : [at * step, 22 - (point.value / most) * 20]))));
  }
}
