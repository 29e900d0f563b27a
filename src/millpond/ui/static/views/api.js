// The service's API, from its own OpenAPI document.

import { ask } from "../data.js";
import { el, empty, scrolling, setText, show } from "../dom.js";
import { number } from "../format.js";

export const title = "API";

const SHOWN = 60;

export function mount(root) {
  const input = el("input", { id: "filter", type: "search", autocomplete: "off", oninput: () => draw() });
  const count = el("p", { class: "note" });
  const bar = el("div", { class: "bar", hidden: true }, el("div", { class: "field" }, el("label", { for: "filter" }, "Filter by path"), input), count);
  const intro = el("p", { class: "note" });
  const list = el("div");
  root.append(intro, bar, list);
  let document_ = null;
  let asked = false;

  function draw() {
    const wanted = Object.entries(document_.paths)
      .flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method, operation })))
      .filter(({ path }) => path.includes(input.value));
    setText(count, wanted.length > SHOWN ? `${SHOWN} of ${number(wanted.length)} shown` : `${number(wanted.length)} operations`);
    list.replaceChildren(...wanted.slice(0, SHOWN).map((each) => described(each, document_)));
  }

  return {
    async update() {
      if (asked) return;
      asked = true;
      try {
        document_ = await ask("openapi.json");
      } catch (error) {
        list.replaceChildren(empty("This process has no HTTP API.", error.message, "millpond serve has one."));
        return;
      }
      intro.replaceChildren(`${document_.info.title} ${document_.info.version}: ${document_.info.description} For tools: `,
        el("a", { href: "openapi.json" }, "openapi.json"), ".");
      show(bar, true);
      draw();
    },
  };
}

function described({ path, method, operation }, document_) {
  const inside = el("div", { class: "inside" });
  const details = el("details", { ontoggle: () => {
    if (details.open && !inside.firstChild) inside.append(...parts(operation, document_));
  } }, el("summary", {}, el("span", { class: "method mono" }, method.toUpperCase()), el("code", {}, path), ` ${operation.summary}`), inside);
  return details;
}

function parts(operation, document_) {
  const found = [];
  if (operation.security) found.push(el("p", {}, "Needs an API key: Authorization: Bearer KEY."));
  for (const [type, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    found.push(el("h3", {}, `Body (${type})`), fields(schema, document_));
    if (type === "application/json") found.push(el("h3", {}, "Example"), el("pre", { tabindex: "0" }, JSON.stringify(example(schema, document_), null, 2)));
  }
  found.push(el("h3", {}, "Answers"));
  const rows = Object.entries(operation.responses).map(([status, response]) => el("tr", {}, el("th", { scope: "row" }, status),
    el("td", {}, response.description), el("td", { class: "mono" }, Object.keys(response.content ?? {}).join(", "))));
  found.push(scrolling("Answers", el("table", {}, el("caption", {}, "Answers"),
    el("thead", {}, el("tr", {}, ...["Status", "Meaning", "Type"].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...rows))));
  return found;
}

function resolved(schema, document_) {
  return schema.$ref ? document_.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

function kind(schema, document_) {
  const of = resolved(schema, document_);
  if (of.anyOf) return of.anyOf.map((each) => kind(each, document_)).join(" or ");
  if (of.type === "array") return `list of ${kind(of.items ?? {}, document_)}`;
  return `${[of.type ?? "any"].flat().join(" or ")}${of.format ? ` (${of.format})` : ""}`;
}

function fields(schema, document_, depth = 0) {
  const of = inner(schema, document_);
  if (!of.properties || depth > 4) return el("p", {}, kind(schema, document_));
  const required = new Set(of.required ?? []);
  return el("ul", {}, ...Object.entries(of.properties).map(([name, each]) => {
    const below = inner(each, document_);
    return el("li", {}, el("code", {}, name), ` ${kind(each, document_)}${required.has(name) ? ", required" : ""}${each.description ? `. ${each.description}` : ""}`,
      below.properties ? fields(each, document_, depth + 1) : null);
  }));
}

// The object that a schema is about: itself, what a list holds, or the one that is not null.
function inner(schema, document_) {
  const of = resolved(schema, document_);
  if (of.type === "array" && of.items) return inner(of.items, document_);
  if (of.anyOf) return of.anyOf.map((each) => inner(each, document_)).find((each) => each.properties) ?? of;
  return of;
}

const EXAMPLES = { integer: 0, number: 0.5, string: "text", boolean: false, null: null };

function example(schema, document_, depth = 0) {
  const of = resolved(schema, document_);
  if (depth > 6) return null;
  if (of.anyOf) return example(of.anyOf[0], document_, depth + 1);
  if (of.type === "array") return of.items ? [example(of.items, document_, depth + 1)] : [];
  if (of.properties) {
    const required = Object.entries(of.properties).filter(([name]) => of.required?.includes(name));
    return Object.fromEntries(required.map(([name, each]) => [name, example(each, document_, depth + 1)]));
  }
  return EXAMPLES[[of.type].flat()[0]] ?? null;
}
