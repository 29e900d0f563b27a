// The frame of the page: which view is shown, how often the server is asked, and whether it answers.

import { ask, History, rememberKey, Unauthorized } from "./data.js";
import { el, setText } from "./dom.js";
import { clock } from "./format.js";
import * as overview from "./views/overview.js";
import * as caches from "./views/caches.js";
import * as queries from "./views/queries.js";
import * as features from "./views/features.js";
import * as state from "./views/state.js";
import * as api from "./views/api.js";

const VIEWS = { overview, caches, queries, features, state, api };
const INTERVALS = { 200: "5 a second", 1000: "every second", 5000: "every 5 s", 0: "paused" };
const SLOWEST_RETRY_MS = 5000;
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("main");
const status = document.getElementById("status");
const history = new History();
let shown = null;

// `?interval=20` asks every 20 ms.
let intervalMs = Number(new URLSearchParams(location.search).get("interval")) || 1000;

class Shown {
  constructor(name, rest) {
    this.name = name;
    this.rest = rest;
    this.root = el("div", { class: `view view-${name}` });
    this.resume = () => {};
    this.due = false;
    this.ended = false;
    this.failures = 0;
    const context = { rest, history, refresh: () => this.wake(), go: (hash) => { location.hash = hash; } };
    this.view = VIEWS[name].mount(this.root, context);
    main.replaceChildren(el("h1", {}, VIEWS[name].title), this.root);
  }

  async run() {
    while (!this.ended) {
      this.due = false;
      await this.look();
      if (!this.due) await this.pause();
    }
  }

  // Look at once, or once more after the look that is under way: that one does not know yet what was typed.
  wake() {
    this.due = true;
    this.resume();
  }

  async look() {
    try {
      const [totals, data] = await Promise.all([ask("ui/overview.json"), this.view.path ? ask(this.view.path()) : null]);
      if (this.ended) return;
      this.failures = 0;
      history.add(performance.timeOrigin + performance.now(), totals);
      setText(document.getElementById("process"), totals.process);
      tell("live", `Live · ${clock(Date.now())}`);
      await new Promise(requestAnimationFrame);
      if (!this.ended) this.view.update(data);
      const updates = Number(document.body.dataset.updates ?? 0) + 1;
      document.body.dataset.updates = String(updates);
      if (updates === 1) performance.mark("first-view");
    } catch (error) {
      if (this.ended) return;
      this.failures++;
      if (error instanceof Unauthorized) {
        this.ended = true;
        askForKey();
        return;
      }
      tell("lost", `${error.message} Shown is what was known at ${lastSeen()}. Trying again …`);
    }
  }

  // Until the next look is due; less often while nobody answers or looks.
  async pause() {
    const delay = this.failures ? Math.min(500 * 2 ** this.failures, SLOWEST_RETRY_MS) : intervalMs;
    await new Promise((resolve) => {
      this.resume = resolve;
      if (this.failures || (delay && !document.hidden)) setTimeout(resolve, delay);
    });
  }

  end() {
    this.ended = true;
    this.wake();
    this.view.end?.();
  }
}

function lastSeen() {
  return history.times.length ? clock(history.times.at(-1)) : "no time yet";
}

function tell(state, text) {
  if (status.dataset.state !== state) {
    status.dataset.state = state;
    // A reader of the screen hears of changes, and not of every second.
    status.setAttribute("aria-live", state === "live" ? "off" : "polite");
    main.toggleAttribute("data-stale", state === "lost");
  }
  setText(status, text);
}

function askForKey() {
  tell("key", "An API key is needed.");
  const input = el("input", { id: "api-key", type: "password", autocomplete: "off", required: true, minlength: "16" });
  const form = el("form", { class: "panel", onsubmit: (event) => {
    event.preventDefault();
    rememberKey(input.value);
    show();
  } },
  el("h1", {}, "API key"),
  el("p", {}, "This server answers only to who has one of its API keys. The key is kept until the tab is closed."),
  el("label", { for: "api-key" }, "API key"), input, el("button", { type: "submit", class: "primary" }, "Show the page"));
  main.replaceChildren(form);
  input.focus();
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function show() {
  const [name, ...rest] = location.hash.slice(1).split("/").filter(Boolean).map(decoded);
  const chosen = Object.hasOwn(VIEWS, name ?? "") ? name : "overview";
  shown?.end();
  shown = new Shown(chosen, rest);
  document.title = `${VIEWS[chosen].title} · Millpond`;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.dataset.view === chosen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shown.run();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("millpond-theme", theme);
  setText(document.getElementById("theme"), `Theme: ${theme}`);
}

document.getElementById("views").append(...Object.entries(VIEWS).map(([name, view]) =>
  el("li", {}, el("a", { href: `#/${name}`, "data-view": name }, view.label ?? view.title))));

const choice = document.getElementById("interval");
if (!(intervalMs in INTERVALS)) INTERVALS[intervalMs] = `every ${intervalMs} ms`;
choice.append(...Object.entries(INTERVALS).map(([ms, text]) => el("option", { value: ms, selected: Number(ms) === intervalMs }, text)));
choice.addEventListener("change", () => {
  intervalMs = Number(choice.value);
  shown.wake();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
setTheme(THEMES.find((theme) => theme === localStorage.getItem("millpond-theme")) ?? "system");
document.addEventListener("visibilitychange", () => shown?.wake());
window.addEventListener("hashchange", () => {
  show();
  window.scrollTo(0, 0);
});
show();
