// CPU and memory of a sandbox over time.

const places = [...document.querySelectorAll("[data-plot]")];
const url = `${location.pathname}/metrics`;
let plots = [];

export function color(name) {
  const probe = document.createElement("span");
  probe.className = "visually-hidden";
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** At least a minute, so that few samples do not look like years. */
function span(_, from, to) {
  return [Math.min(from, to - 60), to];
}

const series = {
  cpu: [{ label: "CPU %", of: (sample) => sample.cpuUsedPct }],
  memory: [
    { label: "Used", of: (sample) => sample.memUsed / 1048576 },
    { label: "Cache", of: (sample) => sample.memCache / 1048576, quiet: true },
  ],
};

function draw(samples) {
  const times = samples.map((sample) => sample.timestampUnix);
  plots.forEach((plot) => plot.destroy());
  plots = places.map((place) => {
    const lines = series[place.dataset.plot];
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: place.clientWidth,
      height: 165,
      legend: { show: lines.length > 1 },
      cursor: { y: false },
      scales: { x: { range: span }, y: { range: (_, low, high) => [0, Math.max(high * 1.15, 1)] } },
      axes: [axis, { ...axis, size: 48 }],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: color(line.quiet ? "--quiet" : "--accent"),
          fill: line.quiet ? undefined : color("--accent-soft"),
          width: 1.5,
          value: (_, value) => (value === null ? "–" : value.toFixed(1)),
        })),
      ],
    };
    return new uPlot(options, [times, ...lines.map((line) => samples.map(line.of))], place);
  });
}

let last = "";
async function load(force) {
  if (document.hidden) return;
  const answer = await fetch(url, { headers: { accept: "application/json" } }).catch(() => null);
  if (!answer?.ok) return;
  const samples = await answer.json();
  const newest = JSON.stringify(samples.at(-1) ?? null);
  if (newest === last && !force) return;
  last = newest;
  draw(samples);
}

if (places.length) {
  addEventListener("isopod:theme", () => load(true));
  addEventListener("resize", () => load(true));
  setInterval(load, 5000);
  load(true);
}
