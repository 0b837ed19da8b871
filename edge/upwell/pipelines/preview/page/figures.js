// Figures with a sparkline each, sampled once a second for two minutes. The text says the same without the line.

import { setText, svg } from "./picture.js";

const SAMPLES = 120;
const EVERY_S = 0.95;

class Figure {
  constructor(list, name) {
    const place = document.createElement("div");
    const term = document.createElement("dt");
    term.textContent = name;
    this.line = svg("polyline", { points: "" });
    const chart = svg("svg", { viewBox: `0 0 ${SAMPLES} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
    chart.append(this.line);
    const described = document.createElement("dd");
    this.value = document.createElement("span");
    this.more = document.createElement("small");
    described.append(this.value, " ", this.more, chart);
    place.append(term, described);
    list.append(place);
    this.samples = [];
  }

  add(value, text, more) {
    setText(this.value, text);
    setText(this.more, more);
    if (value === null) return;
    this.samples = [...this.samples, value].slice(-SAMPLES);
    const most = Math.max(...this.samples, 1e-9);
    const start = SAMPLES - this.samples.length;
    const places = this.samples.map((one, index) => `${start + index + 0.5},${(23 - (21 * one) / most).toFixed(1)}`);
    this.line.setAttribute("points", places.join(" "));
  }
}

export class Figures {
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.shown = new Map();
    this.last = null;
  }

  update(facts) {
    if (this.last && (facts.at_s < this.last.at_s || facts.captured < this.last.captured)) this.clear();
    if (this.last && facts.at_s - this.last.at_s < EVERY_S) return;
    const before = this.last ?? facts;
    const passed_s = facts.at_s - before.at_s;
    const rate = (now, then) => (passed_s > 0 ? Math.max(0, (now - (then ?? 0)) / passed_s) : null);
    const { p50, p99 } = facts.latency_ms;
    this.add("Latency, median", p50, milliseconds(p50));
    this.add("Latency, 99 %", p99, milliseconds(p99));
    const answered = rate(facts.answered, before.answered);
    this.add("Answered per second", answered, perSecond(answered), `${facts.answered} in all`);
    for (const [reason, count] of Object.entries(facts.dropped)) {
      if (count === 0 && !this.shown.has(nameOf(reason))) continue;
      const dropped = rate(count, before.dropped[reason]);
      this.add(nameOf(reason), dropped, perSecond(dropped, "/s"), `${count} in all`);
    }
    this.last = facts;
  }

  add(name, value, text, more = "") {
    if (!this.shown.has(name)) this.shown.set(name, new Figure(this.list, name));
    this.shown.get(name).add(value, text, more);
  }
}

function perSecond(rate, unit = "") {
  return rate === null ? "–" : `${rate.toFixed(1)}${unit}`;
}

function nameOf(reason) {
  return `Dropped: ${reason.replaceAll("_", " ")}`;
}

export function milliseconds(value) {
  return value === null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
