"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const at = (id) => document.getElementById(id);
const make = (name, text, kind) => {
  const one = document.createElement(name);
  if (text !== undefined) one.textContent = text;
  if (kind) one.className = kind;
  return one;
};
const MOST = 12; // labels that are drawn

at("title").textContent = facts.title;
at("secret").hidden = !facts.guarded;
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
const token = facts.guarded ? ' \\\n  -H "authorization: Bearer $HEADHUNT_TOKEN"' : "";
at("curl").textContent =
  `curl ${address} -H 'content-type: application/json'${token} \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
const shown = facts.guarded ? ', "authorization": f"Bearer {token}"' : "";
at("python").textContent = [
  "import json",
  "from urllib.request import Request, urlopen",
  "",
  `body = json.dumps(${body}).encode()`,
  `headers = {"content-type": "application/json"${shown}}`,
  `asked = Request(${JSON.stringify(address)}, body, headers)`,
  "print(json.load(urlopen(asked)))",
].join("\n");

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function show(answer) {
  const parts = [];
  if (facts.problem_type === "regression") parts.push(make("div", String(Number(answer.label.toPrecision(6))), "says"));
  else if (facts.problem_type === "multi_label_classification") parts.push(make("div", answer.label.join(", ") || "none of the labels", "says"));
  else parts.push(make("div", answer.label, "says"));
  const ordered = Object.entries(answer.probabilities).sort((a, b) => b[1] - a[1]);
  for (const [name, share] of ordered.slice(0, MOST)) {
    const bar = make("div", undefined, "bar");
    const track = make("i");
    track.append(make("b"));
    track.firstChild.style.width = percent(share).replace(" ", "");
    const title = make("span", name);
    title.title = name;
    bar.append(title, track, make("span", percent(share)));
    parts.push(bar);
  }
  if (ordered.length > MOST) parts.push(make("div", `and ${ordered.length - MOST} more`, "quiet"));
  at("answer").replaceChildren(...parts);
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("ask").disabled = true;
  const began = performance.now();
  try {
    const headers = { "content-type": "application/json" };
    if (facts.guarded) headers.authorization = `Bearer ${at("token").value}`;
    // An empty field asks for the example that is shown in it.
    const asked = Object.fromEntries(fields.map((area) => [area.name, area.value || area.placeholder]));
    const found = await fetch(address, { method: "POST", headers, body: JSON.stringify(asked) });
    const answer = await found.json();
    if (found.ok) show(answer);
    else at("answer").replaceChildren(make("div", answer.error, "bad"));
    at("took").textContent = `${Math.round(performance.now() - began)} ms`;
  } catch (error) {
    at("answer").replaceChildren(make("div", `The service cannot be reached: ${error.message}`, "bad"));
  } finally {
    at("ask").disabled = false;
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
});
