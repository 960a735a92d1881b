// Score against trained weights, drawn by plotly where it is there; the table has the same numbers.
import { byId } from "./app.js";

const box = byId("plot");
byId("which")?.addEventListener("change", (event) => event.currentTarget.requestSubmit());

const colours = ["#23906a", "#3d7cc9", "#d1603d", "#7a5bb5", "#c29200", "#c2407f", "#5b8c2a", "#3aa0b8", "#8a94a1"];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const draw = () => {
  const { points, metric } = JSON.parse(box.dataset.figure);
  const families = [...new Set(points.map((point) => point.family))];
  const text = (value) => String(value).replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // plotly reads some tags
  const traces = families.map((family, i) => {
    const mine = points.filter((point) => point.family === family).sort((a, b) => a.trained - b.trained);
    return {
      type: "scatter", mode: mine.length > 1 && !mine[0].task ? "lines+markers" : "markers", name: text(family),
      x: mine.map((point) => Math.max(1, point.trained)), y: mine.map((point) => point.score),
      text: mine.map((point) => text(point.name)), hovertemplate: "%{text}<br>%{y:.4f}<br>%{x:,} weights<extra></extra>",
      marker: { color: colours[i % colours.length], size: 10 }, line: { color: colours[i % colours.length], width: 1 },
      error_y: { type: "data", array: mine.map((point) => point.spread ?? 0), visible: mine.some((point) => point.spread), thickness: 1 },
    };
  });
  const axis = { gridcolor: colour("--line"), zeroline: false, linecolor: colour("--line") };
  const layout = {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: colour("--ink"), family: "system-ui, sans-serif" },
    margin: { l: 60, r: 16, t: 16, b: 52 }, height: 420, hovermode: "closest", legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: { ...axis, type: "log", title: { text: "trained weights" } }, yaxis: { ...axis, title: { text: text(metric) } },
  };
  window.Plotly.react(box, traces, layout, { responsive: true, displayModeBar: false });
};

if (box && window.Plotly) {
  draw();
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
} else if (box) box.hidden = true;
