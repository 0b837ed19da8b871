// Zones and lines drawn on the picture, by mouse, touch or keyboard, and the text for pipelines.yaml.

import { label, outlined, points, svg } from "./picture.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const MEANS_SOMETHING = /^(y|n|yes|no|on|off|true|false|null)$/i;
const MOST_POINTS = 100;
const NEAR_PX = 12;
const NUDGE = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const rounded = (fraction) => Math.round(Math.min(1, Math.max(0, fraction)) * 1000) / 1000;
const pair = ([x, y]) => `[${x}, ${y}]`;
const same = (one, other) => one !== undefined && one[0] === other[0] && one[1] === other[1];

// A name as a key of YAML: in quotes where it could be read as a number or a truth value.
function key(name) {
  return /^[A-Za-z]/.test(name) && !MEANS_SOMETHING.test(name) ? name : JSON.stringify(name);
}

// `zones: {door: [[0.4, 0.2], …], gate: {line: [[0, 0.5], [1, 0.5]]}}`, in one line, so that indentation does not matter.
export function asYaml(shapes) {
  const parts = shapes.map((shape) => {
    const list = `[${shape.points.map(pair).join(", ")}]`;
    return `${key(shape.name)}: ${shape.kind === "line" ? `{line: ${list}}` : list}`;
  });
  return `zones: {${parts.join(", ")}}`;
}

export class Drawing {
  constructor(place, stage, pipeline, announce) {
    this.form = document.getElementById("drawing").content.firstElementChild.cloneNode(true);
    this.stage = stage;
    this.announce = announce;
    this.layer = svg("svg", { "aria-hidden": "true", class: "sketch" });
    this.cross = [0.5, 0.5];
    this.shapes = [];
    this.current = [];
    place.append(this.form);
    stage.append(this.layer);
    const help = this.form.querySelector(".help");
    help.id = `help-${Math.random().toString(36).slice(2)}`;
    for (const [attribute, value] of Object.entries({
      tabindex: "0", role: "application", "aria-label": `Drawing on the picture of ${pipeline}`,
      "aria-describedby": help.id,
    })) stage.setAttribute(attribute, value);
    this.suggestName();
    this.listen();
    this.draw();
  }

  get kind() {
    return this.form.elements.kind.value;
  }

  listen() {
    const { elements } = this.form;
    this.stage.addEventListener("click", (event) => {
      const place = this.stage.getBoundingClientRect();
      this.set([(event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height], true);
    });
    this.stage.addEventListener("keydown", (event) => this.press(event));
    this.stage.addEventListener("focus", () => this.draw());
    this.stage.addEventListener("blur", () => this.draw());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.finish();
    });
    for (const radio of elements.kind) {
      radio.addEventListener("change", () => {
        this.current = [];
        this.suggestName();
        this.draw();
      });
    }
    elements.undo.addEventListener("click", () => this.undo());
    elements.clear.addEventListener("click", () => {
      this.shapes = [];
      this.current = [];
      this.suggestName();
      this.say("Nothing is drawn now.");
    });
    elements.copy.addEventListener("click", () => this.copy());
    new ResizeObserver(() => this.draw()).observe(this.stage);
  }

  press(event) {
    if (event.altKey || event.metaKey) return;
    if (event.key in NUDGE && !event.ctrlKey) {
      const step = event.shiftKey ? 0.001 : 0.01;
      this.cross = this.cross.map((at, axis) => rounded(at + step * NUDGE[event.key][axis]));
      this.say(`Cross at ${this.cross.join(", ")}`);
    } else if (event.key === "Enter") {
      this.set(this.cross, false);
    } else if (event.key === "Backspace" || (event.ctrlKey && event.key === "z")) {
      this.undo();
    } else {
      return;
    }
    event.preventDefault();
  }

  // A point of the shape; one near the first corner closes the zone.
  set(fractions, isPointer) {
    const point = fractions.map(rounded);
    this.cross = point;
    const first = this.current[0];
    if (this.kind === "zone" && this.current.length >= 3 && (isPointer ? this.isNear(first, point) : same(first, point))) {
      this.finish();
    } else if (same(this.current.at(-1), point)) {
      this.say("There is a point already.", true);
    } else if (this.current.length >= (this.kind === "line" ? 2 : MOST_POINTS)) {
      this.say("The shape has all the points it can have: finish it.", true);
    } else {
      this.current.push(point);
      if (this.kind === "line" && this.current.length === 2) this.finish();
      else this.say(`Point ${this.current.length} at ${point.join(", ")}`);
    }
  }

  isNear(one, other) {
    const { width, height } = this.stage.getBoundingClientRect();
    return Math.hypot((one[0] - other[0]) * width, (one[1] - other[1]) * height) <= NEAR_PX;
  }

  finish() {
    const name = this.form.elements.name.value.trim();
    const least = this.kind === "line" ? 2 : 3;
    let wrong = "";
    if (this.current.length < least) wrong = `A ${this.kind} needs ${least} points or more; this one has ${this.current.length}.`;
    else if (!NAME.test(name)) wrong = "A name has up to 64 letters, digits, - and _, and begins with a letter or digit.";
    else if (this.shapes.some((shape) => shape.name === name)) wrong = `There is a shape named ${name} already.`;
    if (wrong) {
      this.say(wrong, true);
      return;
    }
    this.shapes.push({ name, kind: this.kind, points: this.current });
    this.current = [];
    this.suggestName();
    this.say(`${name} is drawn.`);
  }

  undo() {
    if (this.current.length === 0) {
      const last = this.shapes.pop();
      if (last === undefined) return;
      this.form.elements.kind.value = last.kind;
      this.form.elements.name.value = last.name;
      this.current = last.kind === "line" ? last.points.slice(0, -1) : last.points;
      this.say(`${last.name} is open again.`);
      return;
    }
    this.current.pop();
    this.say(`${this.current.length} points.`);
  }

  suggestName() {
    let number = 1;
    while (this.shapes.some((shape) => shape.name === `${this.kind}${number}`)) number += 1;
    this.form.elements.name.value = `${this.kind}${number}`;
  }

  async copy() {
    const code = this.form.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      this.say("Copied.");
    } catch {
      getSelection().selectAllChildren(code);
      this.say("The browser does not let the page copy. The text is selected: copy it with the keyboard.", true);
    }
  }

  say(text, isWrong = false) {
    const place = this.form.querySelector(".said");
    place.textContent = text;
    place.classList.toggle("wrong", isWrong);
    this.announce(text);
    this.draw();
  }

  draw() {
    const size = { width: this.stage.clientWidth, height: this.stage.clientHeight };
    this.layer.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    const shapes = [];
    for (const shape of this.shapes) {
      const tag = shape.kind === "line" ? "polyline" : "polygon";
      const looks = `drawn${shape.kind === "line" ? " line" : ""}`;
      shapes.push(...outlined(tag, { points: points(shape.points, size), class: looks }));
      shapes.push(label(shape.name, shape.points[0], size));
    }
    if (this.current.length) {
      shapes.push(...outlined("polyline", { points: points(this.current, size), class: "drawn open" }));
      for (const [x, y] of this.current) {
        shapes.push(svg("circle", { cx: x * size.width, cy: y * size.height, r: 4, class: "corner" }));
      }
    }
    if (document.activeElement === this.stage) {
      const [x, y] = [this.cross[0] * size.width, this.cross[1] * size.height];
      const path = `M${x - 12} ${y}h24M${x} ${y - 12}v24`;
      shapes.push(svg("path", { d: path, class: "cross under" }), svg("path", { d: path, class: "cross" }));
    }
    this.layer.replaceChildren(...shapes);
    this.form.querySelector("code").textContent = this.shapes.length ? asYaml(this.shapes) : "Nothing is drawn yet.";
    this.form.elements.copy.disabled = this.shapes.length === 0;
  }
}
