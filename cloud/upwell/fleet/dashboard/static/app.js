// Times in the viewer's zone, the plot of a device's history, and a confirmation before halting a roll-out.
const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function localTimes() {
  for (const one of document.querySelectorAll("time[datetime]:not([data-local])")) {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) one.textContent = shown.format(at);
    one.dataset.local = "yes";
  }
}

function plot() {
  const place = document.getElementById("plot");
  if (place === null) return;
  const points = JSON.parse(place.dataset.points);
  if (points[0].length < 2) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--edge") }, ticks: { stroke: colour("--edge") } };
  const made = new uPlot({
    width: place.clientWidth, height: 220,
    series: [
      {},
      { label: "late %", stroke: colour("--bad"), width: 2 },
      { label: "degraded %", stroke: colour("--accent"), width: 2, dash: [6, 4] },
    ],
    axes: [axis, { ...axis, values: (_, values) => values.map((one) => `${one} %`) }],
  }, points, place);
  window.addEventListener("resize", () => made.setSize({ width: place.clientWidth, height: 220 }));
}

document.addEventListener("submit", (event) => {
  const question = event.target.dataset.question;
  if (question !== undefined && !window.confirm(question)) event.preventDefault();
});
document.addEventListener("htmx:afterSettle", localTimes);
localTimes();
plot();
