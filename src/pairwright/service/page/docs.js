// The API's description as a page: every call of openapi.json with its parameters and body.
"use strict";

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function kind(schema, all) {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((part) => kind(part, all)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return "[" + kind(schema.items, all) + "]";
  return schema.type || "any";
}

function fields(schema, all) {
  const rows = Object.entries(schema.properties || {}).map(([name, field]) => {
    const needed = (schema.required || []).includes(name) ? "required" : field.default === undefined ? "" : JSON.stringify(field.default);
    return make("tr", {}, make("td", { class: "name" }, name), make("td", {}, kind(field, all)), make("td", {}, needed));
  });
  return make("div", { class: "scroll" }, make("table", {}, ...rows));
}

async function draw() {
  const api = await (await fetch("openapi.json")).json();
  const main = document.getElementById("main");
  const all = api.components.schemas;
  main.append(make("h2", {}, api.info.title + " " + api.info.version), make("p", {}, api.info.description));
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, call] of Object.entries(methods)) {
      const section = make("section", {}, make("h3", {}, method.toUpperCase() + " " + path), make("p", {}, call.description || ""));
      const body = call.requestBody && Object.values(call.requestBody.content)[0].schema;
      if (body && body.$ref) section.append(fields(all[body.$ref.split("/").pop()], all));
      main.append(section);
    }
  }
  main.append(make("h2", {}, "Types"));
  for (const [name, schema] of Object.entries(all)) {
    if (schema.properties) main.append(make("section", {}, make("h3", {}, name), fields(schema, all)));
  }
}
draw();
