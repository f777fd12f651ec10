"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (id) => document.getElementById(id);
const make = (name, text, className) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  return element;
};
const MAX_BARS = 12; // labels with a bar

at("title").textContent = facts.title;
at("authorization").hidden = !facts.needs_token;
const fields = Object.entries(facts.example).map(([name, example]) => {
  const label = make("label", facts.names[name]);
  const area = make("textarea");
  area.id = area.name = label.htmlFor = name;
  area.maxLength = facts.characters;
  area.placeholder = example;
  at("texts").append(label, area);
  return area;
});

const address = new URL("predict", location.href).href;
const body = JSON.stringify(facts.example, null, 1).replace(/\n */g, " ").replace("{ ", "{").replace(" }", "}");
const token = facts.needs_token ? ' \\\n  -H "authorization: Bearer $HEADHUNT_TOKEN"' : "";
at("curl").textContent =
  `curl ${address} -H 'content-type: application/json'${token} \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
const authorization = facts.needs_token ? ', "authorization": f"Bearer {token}"' : "";
at("python").textContent = [
  "import json",
  "from urllib.request import Request, urlopen",
  "",
  `body = json.dumps(${body}).encode()`,
  `headers = {"content-type": "application/json"${authorization}}`,
  `request = Request(${JSON.stringify(address)}, body, headers)`,
  "print(json.load(urlopen(request)))",
].join("\n");

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function answer(prediction, problemType) {
  const elements = [];
  if (problemType === "regression") elements.push(make("div", String(Number(prediction.label.toPrecision(6))), "label"));
  else if (problemType === "multi_label_classification") elements.push(make("div", prediction.label.join(", ") || "none of the labels", "label"));
  else elements.push(make("div", prediction.rejected ? "no answer: rejected" : prediction.label, "label"));
  const ordered = Object.entries(prediction.probabilities).sort((a, b) => b[1] - a[1]);
  for (const [name, share] of ordered) {
    const bar = make("div", undefined, "bar");
    const track = make("i");
    track.append(make("b"));
    track.firstChild.style.width = percent(share).replace(" ", "");
    const title = make("span", name);
    title.title = name;
    bar.append(title, track, make("span", percent(share)));
    elements.push(bar);
  }
  return elements;
}

function show(prediction) {
  const parts = facts.tasks.flatMap(([name, type]) => [make("h3", name), ...answer(prediction[name], type)]);
  at("prediction").replaceChildren(...(facts.tasks.length ? parts : answer(prediction, facts.problem_type)));
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("predict").disabled = true;
  const started = performance.now();
  try {
    const headers = { "content-type": "application/json" };
    if (facts.needs_token) headers.authorization = `Bearer ${at("token").value}`;
    // An empty field sends the example that it displays.
    const request = Object.fromEntries(fields.map((area) => [area.name, area.value || area.placeholder]));
    request.top_k = MAX_BARS;
    const response = await fetch(address, { method: "POST", headers, body: JSON.stringify(request) });
    const result = await response.json();
    if (response.ok) show(result);
    else at("prediction").replaceChildren(make("div", result.error, "error"));
    at("duration").textContent = `${Math.round(performance.now() - started)} ms`;
  } catch (error) {
    at("prediction").replaceChildren(make("div", `The service cannot be reached: ${error.message}`, "error"));
  } finally {
    at("predict").disabled = false;
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
});
