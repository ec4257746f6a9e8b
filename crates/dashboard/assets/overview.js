// Creates per second and their time, drawn from the counters of the last minutes.

import { color } from "./plots.js";

const EVERY = 2000;
const KEPT = 150;
const places = Object.fromEntries([...document.querySelectorAll("[data-figure]")].map((place) => [place.dataset.figure, place]));
const points = { times: [], creates: [], latency: [] };
const plots = {};
let before = null;

function draw(name) {
  const place = places[name];
  const data = [points.times, points[name]];
  if (plots[name]) {
    plots[name].setData(data);
    return;
  }
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  plots[name] = new uPlot({
    width: place.clientWidth,
    height: 165,
    legend: { show: false },
    cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.2, 1)] } },
    axes: [axis, { ...axis, size: 44 }],
    series: [{}, { stroke: color("--accent"), fill: color("--accent-soft"), width: 1.5, spanGaps: true }],
  }, data, place);
}

async function look() {
  if (document.hidden) return;
  const answer = await fetch("/dashboard/figures", { headers: { accept: "application/json" } }).catch(() => null);
  const now = answer?.ok ? { at: Date.now() / 1000, ...(await answer.json()) } : null;
  if (!now || now.creates === undefined) return;
  if (before && now.creates >= before.creates) {
    const made = now.creates - before.creates;
    points.times.push(now.at);
    points.creates.push(made / (now.at - before.at));
    points.latency.push(made ? ((now.seconds - before.seconds) * 1000) / made : null);
    for (const list of Object.values(points)) if (list.length > KEPT) list.shift();
    draw("creates");
    draw("latency");
  }
  before = now;
}

function again() {
  for (const name of Object.keys(plots)) {
    plots[name].destroy();
    delete plots[name];
    draw(name);
  }
}

if (places.creates) {
  addEventListener("resize", again);
  addEventListener("isopod:theme", again);
  setInterval(look, EVERY);
  look();
}
