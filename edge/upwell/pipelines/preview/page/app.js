// Fetches the state of each pipeline and shows it. Text of a model or a file is never interpreted as HTML.

import { Drawing } from "./drawing.js";
import { Figures, milliseconds } from "./figures.js";
import { Picture, score, setText } from "./picture.js";

const LIMIT_MS = 5000;
const NAMES_EVERY = 10;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const draws = new URLSearchParams(location.search).get("draw") === "zones";
const byId = (id) => document.getElementById(id);
const panels = new Map();
let paused = false;
let connection = "";

function announce(text) {
  byId("announcer").textContent = text;
}

async function ask(path) {
  return fetch(path, { cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
}

class Panel {
  constructor(name) {
    this.name = name;
    this.path = `/preview/${encodeURIComponent(name)}`;
    this.element = byId("panel").content.firstElementChild.cloneNode(true);
    this.stage = this.find(".stage");
    const heading = this.find("h2");
    heading.textContent = name;
    heading.id = `pipeline-${panels.size}-${Date.now()}`;
    this.element.setAttribute("aria-labelledby", heading.id);
    this.picture = new Picture(this.stage, name);
    this.figures = new Figures(this.find(".figures"));
    this.frame = "";
    this.state = "";
    if (draws) new Drawing(this.find(".tools"), this.stage, name, announce);
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  async update() {
    const answer = await ask(`${this.path}.json`);
    if (!answer.ok) {
      this.message(`No state of this pipeline: the agent answers ${answer.status}.`);
      return;
    }
    const facts = await answer.json();
    this.showSource(facts);
    this.figures.update(facts);
    this.showLists(facts);
    if (facts.frame === null) return;
    const frame = `${facts.frame.number} ${facts.frame.captured_unix_s}`;
    if (frame !== this.frame) {
      const picture = await ask(`${this.path}.jpg?frame=${facts.frame.number}`);
      if (!picture.ok) return; // a newer frame has replaced it
      await this.picture.show(facts, await picture.blob());
      this.frame = frame;
      this.showObjects(facts);
    }
    setText(this.find(".about"), about(facts.frame));
  }

  showSource({ source, frame }) {
    const line = this.find(".source");
    line.className = `source ${source.state}`;
    const size = source.width ? `${source.width} × ${source.height}` : "";
    const again = source.reconnects ? `connected again ${source.reconnects} times` : "";
    setText(line, [source.state, source.decoder, size, again].filter(Boolean).join(", "));
    const why = source.explained ? `: ${source.explained}` : "";
    const trouble = source.state === "lost" ? `Source lost${why}` : source.state === "ended" ? `Source ended${why}` : "";
    this.stage.classList.toggle("empty", frame === null);
    this.stage.classList.toggle("stale", trouble !== "");
    this.message([frame === null ? "No frame yet." : "", trouble].filter(Boolean).join(" "));
    if (this.state && this.state !== source.state) announce(`${this.name}: source ${source.state}${why}`);
    this.state = source.state;
  }

  message(text) {
    const place = this.find(".message");
    setText(place, text);
    place.hidden = !text;
  }

  showLists(facts) {
    const events = Object.entries(facts.events).map(([name, count]) => `${name} ${count}`);
    fill(this.find(".events"), events.length ? `Events: ${events.join(", ")}` : "");
    fill(this.find(".failure"), facts.last_failure ? `Last frame without an answer: ${facts.last_failure}` : "");
  }

  showObjects(facts) {
    const body = this.find("tbody");
    this.find("table").hidden = facts.objects.length === 0;
    const more = facts.objects_left_out;
    fill(this.find(".none"), facts.objects.length === 0 ? "None on this frame." : more ? `And ${more} more.` : "");
    while (body.rows.length > facts.objects.length) body.deleteRow(-1);
    const ordered = [...facts.objects].sort((one, other) => (one.track ?? Infinity) - (other.track ?? Infinity) || 0);
    ordered.forEach((found, index) => {
      const row = body.rows[index] ?? body.insertRow();
      cells(found, facts.frame).forEach((text, column) => setText(row.cells[column] ?? row.insertCell(), text));
    });
  }
}

function fill(element, text) {
  setText(element, text);
  element.hidden = !text;
}

function said(answer) {
  const value = answer.label ?? answer.value ?? (Array.isArray(answer.values) ? answer.values.join(" ") : "");
  return `${value} ${score(answer.score)}`.trim();
}

function why(facts) {
  return [facts.route, facts.reason].filter(Boolean).join(", ");
}

function cells(found, frame) {
  const answers = Object.entries(found.answers).filter(([, answer]) => answer !== null && typeof answer === "object");
  const values = answers.map(([model, answer]) => `${model}: ${said(answer)}`);
  const routes = answers.filter(([, answer]) => answer.route).map(([model, answer]) => `${model}: ${why(answer)}`);
  return [
    [`${found.label} ${score(found.score)}`.trim(), ...values].join("; "),
    found.track === null ? "–" : String(found.track),
    found.zones.join(", ") || "–",
    routes.join("; ") || why(frame) || "–",
  ];
}

function about(frame) {
  const answers = Object.entries(frame.answers).filter(([, answer]) => answer !== null && typeof answer === "object");
  const values = answers.map(([model, answer]) => [model, said(answer)]).filter(([, value]) => value);
  return [
    `Frame ${frame.number}, ${frame.age_s < 100 ? frame.age_s.toFixed(1) : Math.round(frame.age_s)} s old`,
    `answered in ${milliseconds(frame.latency_ms)}`,
    why(frame) + (frame.degraded ? ", degraded" : ""),
    ...values.map(([model, value]) => `${model}: ${value}`),
  ].filter(Boolean).join(" · ");
}

async function readNames() {
  const answer = await ask("/preview.json");
  if (!answer.ok) throw new Error(`the agent answers ${answer.status}`);
  const { pipelines } = await answer.json();
  const main = byId("pipelines");
  for (const [name, panel] of panels) {
    if (!pipelines.includes(name)) {
      panel.element.remove();
      panels.delete(name);
    }
  }
  for (const name of pipelines) {
    if (panels.has(name)) continue;
    const panel = new Panel(name);
    panels.set(name, panel);
    main.append(panel.element);
  }
  const empty = byId("empty");
  if (panels.size > 0) empty?.remove();
  else if (!empty) {
    const none = document.createElement("p");
    none.id = "empty";
    none.textContent = "No pipeline has a preview.";
    main.append(none);
  }
}

function setConnection(state) {
  if (state === connection) return;
  const line = byId("connection");
  const texts = {
    good: "Connected.",
    lost: `Connection lost at ${new Date().toLocaleTimeString()}. Trying again.`,
    paused: "Paused.",
  };
  line.textContent = texts[state];
  line.classList.toggle("lost", state === "lost");
  for (const panel of panels.values()) panel.stage.classList.toggle("stale", state === "lost");
  if (connection !== "") announce(line.textContent);
  connection = state;
}

async function round(number) {
  if (number % NAMES_EVERY === 0 || panels.size === 0) await readNames();
  for (const panel of panels.values()) await panel.update(); // one after another: the agent has few connections
}

async function run() {
  for (let number = 0; ; number += 1) {
    if (!paused && !document.hidden) {
      try {
        await round(connection === "lost" ? 0 : number);
        setConnection(paused ? "paused" : "good");
      } catch {
        setConnection("lost");
      }
    }
    const pause_ms = connection === "lost" || reducedMotion.matches ? 1000 : 200;
    await new Promise((resolve) => setTimeout(resolve, pause_ms));
  }
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) setConnection("paused");
});
if (draws) {
  byId("mode").textContent = "Stop drawing";
  byId("mode").href = "/preview";
}
run();
