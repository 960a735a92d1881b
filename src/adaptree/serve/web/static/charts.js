// A small line chart as SVG: it needs no library, and follows the page's colours.

const SVG = "http://www.w3.org/2000/svg";
const W = 420;
const H = 190;
const EDGE = { left: 46, right: 12, top: 10, bottom: 26 };

const node = (tag, attributes, text) => {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

const ticks = (low, high) => {
  const rough = (high - low) / 4 || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Number(at.toPrecision(8)));
  return found;
};

// `lines` are lists of points [x, y] in order; `label` says to those who cannot see it what it shows.
export const draw = (figure, lines, { label, zero = false, marks = false, best = null }) => {
  let found = figure.querySelector("svg");
  if (!found) {
    found = node("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img" });
    figure.append(found);
  }
  const points = lines.flat();
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [zero ? Math.min(0, ...ys) : Math.min(...ys), Math.max(...ys)];
  if (y0 === y1) { y0 -= 0.05 * (Math.abs(y0) || 1); y1 += 0.05 * (Math.abs(y1) || 1); }
  const px = (x) => EDGE.left + (x1 === x0 ? 0.5 : (x - x0) / (x1 - x0)) * (W - EDGE.left - EDGE.right);
  const py = (y) => H - EDGE.bottom - ((y - y0) / (y1 - y0)) * (H - EDGE.top - EDGE.bottom);
  const parts = [];
  for (const y of ticks(y0, y1)) {
    parts.push(node("line", { class: "axis", x1: EDGE.left, x2: W - EDGE.right, y1: py(y), y2: py(y) }));
    parts.push(node("text", { x: EDGE.left - 6, y: py(y) + 4, "text-anchor": "end" }, String(y)));
  }
  for (const x of ticks(x0, x1).filter((each) => Number.isInteger(each))) {
    parts.push(node("text", { x: px(x), y: H - 8, "text-anchor": "middle" }, x.toLocaleString("en")));
  }
  for (const line of lines.filter((each) => each.length > 1)) parts.push(node("polyline", { class: "line", points: line.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" ") }));
  if (marks || points.length === 1) for (const [x, y] of points) parts.push(node("circle", { class: "dot", cx: px(x), cy: py(y), r: 3 }));
  if (best) parts.push(node("circle", { class: "best", cx: px(best[0]), cy: py(best[1]), r: 5 }));
  found.replaceChildren(...parts);
  found.setAttribute("aria-label", label);
  figure.hidden = false;
};
