// The picture of a frame with its zones, lines, boxes and tracks. All texts are text nodes.

const TRAIL_POINTS = 40;
const FORGET_S = 3;
const NEAR_RIGHT = 0.65;

export function svg(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function score(value) {
  return typeof value === "number" ? value.toFixed(2) : "";
}

// Points as fractions -> the attribute `points` in CSS pixels.
export function points(fractions, size) {
  return fractions.map(([x, y]) => `${(x * size.width).toFixed(1)},${(y * size.height).toFixed(1)}`).join(" ");
}

// A shape on top of a dark one, so that it is visible on any picture.
export function outlined(tag, attributes) {
  return [svg(tag, { ...attributes, class: "under" }), svg(tag, attributes)];
}

export class Picture {
  constructor(stage, name) {
    this.stage = stage;
    this.image = stage.querySelector("img");
    this.image.alt = `Picture of ${name}; its objects are in the table below`;
    this.overlay = stage.querySelector(".overlay");
    this.trails = new Map();
    this.facts = null;
    new ResizeObserver(() => this.draw()).observe(stage);
  }

  // Show the picture and its findings at the same time.
  async show(facts, blob) {
    const old = this.image.src;
    const next = URL.createObjectURL(blob);
    this.image.src = next;
    if (old) URL.revokeObjectURL(old);
    await this.image.decode();
    this.image.hidden = false;
    const { width, height } = facts.frame;
    this.stage.style.aspectRatio = `${width} / ${height}`;
    this.stage.style.maxWidth = `calc(80vh * ${width / height})`; // a tall picture fits on the screen
    this.facts = facts;
    this.follow(facts);
    this.draw();
  }

  follow(facts) {
    for (const found of facts.objects) {
      if (found.track === null) continue;
      const trail = this.trails.get(found.track) ?? { points: [], seen_s: 0 };
      const [x1, , x2, y2] = found.box;
      trail.points = [...trail.points, [(x1 + x2) / 2, y2]].slice(-TRAIL_POINTS);
      trail.seen_s = facts.at_s;
      this.trails.set(found.track, trail);
    }
    for (const [track, trail] of this.trails) {
      if (Math.abs(facts.at_s - trail.seen_s) > FORGET_S) this.trails.delete(track);
    }
  }

  draw() {
    if (!this.facts) return;
    const size = { width: this.stage.clientWidth, height: this.stage.clientHeight };
    this.overlay.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
    const shapes = [];
    const labels = []; // above all shapes
    for (const [name, corners] of Object.entries(this.facts.zones)) {
      shapes.push(svg("polygon", { points: points(corners, size), class: "zone" }));
      labels.push(label(name, corners[0], size));
    }
    for (const [name, ends] of Object.entries(this.facts.lines)) {
      shapes.push(...outlined("polyline", { points: points(ends, size), class: "line" }));
      labels.push(label(name, ends[0], size));
    }
    for (const trail of this.trails.values()) {
      if (trail.points.length > 1) {
        shapes.push(...outlined("polyline", { points: points(trail.points, size), class: "trail" }));
      }
    }
    for (const found of this.facts.objects) {
      const [x1, y1, x2] = found.box;
      shapes.push(...box(found, this.facts.frame, size));
      labels.push(label(nameOf(found), [x1 > NEAR_RIGHT ? x2 : x1, y1], size));
    }
    this.overlay.replaceChildren(...shapes, ...labels);
  }
}

// A text above a point, or below it at the top of the picture; to the left of it near the right edge.
export function label(text, [x, y], size) {
  const top = y * size.height;
  return svg("text", {
    x: Math.min(Math.max(x * size.width, 4), size.width - 4),
    y: top < 18 ? top + 15 : top - 5,
    "text-anchor": x > NEAR_RIGHT ? "end" : "start",
  }, text.length > 40 ? `${text.slice(0, 39)}…` : text);
}

function box(found, frame, size) {
  const [x1, y1, x2, y2] = found.box;
  const route = routeOf(found, frame);
  const place = {
    x: (x1 * size.width).toFixed(1), y: (y1 * size.height).toFixed(1),
    width: Math.max(0, (x2 - x1) * size.width).toFixed(1), height: Math.max(0, (y2 - y1) * size.height).toFixed(1),
  };
  const looks = ["box", ["cloud", "mixed"].includes(route) ? route : "", frame.degraded ? "degraded" : ""];
  return outlined("rect", { ...place, class: looks.filter(Boolean).join(" ") });
}

function nameOf(found) {
  const track = found.track === null ? "" : ` #${found.track}`;
  return `${found.label}${track} ${score(found.score)}`.trim();
}

// The route of the last answer about the object, or about the frame if no model was asked about the object.
export function routeOf(found, frame) {
  const routes = Object.values(found.answers).map((answer) => answer?.route).filter((one) => typeof one === "string");
  return routes.at(-1) ?? frame.route;
}
