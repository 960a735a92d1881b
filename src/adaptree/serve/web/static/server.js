// The server's figures as they are now: asked for every other second, and drawn as lines of the last two minutes.
import { ask, element } from "./app.js";

const EVERY = 2000;
const KEPT = 60;
const box = document.getElementById("figures");
const samples = [];

const size = (bytes) => {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  for (; bytes >= 1000 && i < units.length - 1; i++) bytes /= 1000;
  return `${bytes.toFixed(i ? 1 : 0)} ${units[i]}`;
};
const count = (value) => Math.round(value).toLocaleString("en");
const tenth = (value) => value.toFixed(1);
const time = (seconds) => (seconds === null ? "–" : seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`);
const FORMS = {
  texts_per_second: (value) => (value < 10 ? tenth(value) : count(value)), texts: count, answered: count, p50: time, p95: time,
  p50_now: time, p95_now: time, tasks_per_batch: tenth, rows_per_batch: tenth, tokens_per_second: count, waiting: count,
  failures: count, expired: count, tasks: count, shared_bytes: size, separate_bytes: size, bytes: size, memory: size,
  loads: count, evictions: count, replicas: count, ratio: (value) => value === null ? "–" : `${value < 10 ? tenth(value) : count(value)}×`,
};

const quantile = (share, counts, bounds) => {
  const wanted = share * counts.reduce((a, b) => a + b, 0);
  if (!wanted) return null;
  let seen = 0;
  for (let i = 0; i < counts.length; i++) {
    if (seen + counts[i] >= wanted) {
      const low = i ? bounds[i - 1] : 0;
      return low + ((bounds[i] ?? low) - low) * (wanted - seen) / counts[i];
    }
    seen += counts[i];
  }
  return bounds.at(-1);
};

const line = (of) => {
  const values = samples.map((each) => each[of] ?? 0);
  const most = Math.max(1e-9, ...values);
  const step = 120 / (KEPT - 1);
  const first = KEPT - values.length;
  return values.map((value, i) => `${((first + i) * step).toFixed(1)},${(30 - 27 * value / most).toFixed(1)}`).join(" ");
};

const histogram = (place, pairs) => {
  const most = Math.max(1, ...pairs.map(([, n]) => n));
  place.replaceChildren(...pairs.map(([top, n]) => {
    const bar = element("span", "column");
    bar.style.setProperty("--share", n / most);
    return element("span", "slot", bar, element("span", "faint", top > 2 ? `≤${top}` : String(top)));
  }));
};

const show = (figures) => {
  const before = samples.at(-1);
  const seconds = before ? (figures.at - before.at) / 1000 : 0;
  const fresh = before ? figures.latency_buckets.map((n, i) => n - before.latency_buckets[i]) : figures.latency_buckets.map(() => 0);
  const now = {
    ...figures, texts_per_second: seconds ? Math.max(0, figures.texts - before.texts) / seconds : 0,
    p50_now: quantile(0.5, fresh, figures.latency_bounds), p95_now: quantile(0.95, fresh, figures.latency_bounds),
    ratio: figures.tasks ? figures.separate_bytes / figures.shared_bytes : null,
  };
  samples.push(now);
  if (samples.length > KEPT) samples.shift();
  for (const place of box.querySelectorAll("[data-show]")) place.textContent = FORMS[place.dataset.show](now[place.dataset.show]);
  for (const place of box.querySelectorAll("[data-line]")) place.setAttribute("points", line(place.dataset.line));
  for (const place of box.querySelectorAll("[data-histogram]")) histogram(place, now[place.dataset.histogram]);
  const fills = { shared: now.shared_bytes / now.separate_bytes, separate: 1 };
  for (const place of box.querySelectorAll("[data-fill]")) place.style.setProperty("--share", fills[place.dataset.fill]);
};

const poll = async () => {
  if (document.hidden) return;
  try {
    show({ ...await ask("/server/figures"), at: performance.now() });
    box.classList.remove("gone");
  } catch {
    box.classList.add("gone"); // the server restarts, perhaps
  }
};

show({ ...JSON.parse(box.dataset.first), at: performance.now() });
setInterval(poll, EVERY);
