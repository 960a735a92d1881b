// One text through all tasks: the answers are shown as they come, and a newer text drops those of the older one.
import { byId, debounced, element, inAddress, problem } from "./app.js";
import { inShort, percent } from "./answers.js";

const MOST = 500;
const form = byId("all");
const list = byId("answers");
const status = byId("status");
const order = byId("order").querySelector("select");
let running = null;
let found = [];

const row = (each) => {
  const short = inShort(each.answer ?? { error: each.error });
  const link = element("a", "", each.task);
  link.href = `/task/${inAddress(each.task)}`;
  const shown = element("li", "", element("span", "who", link, element("span", "faint", ` ${each.kind}`)), element("span", short.bad ? "problem what" : "what", short.text));
  if (typeof short.share === "number") {
    const fill = element("span", "fill");
    fill.style.setProperty("--share", short.share);
    shown.append(element("span", "rail", fill), element("span", "number faint", percent(short.share)));
  }
  return shown;
};

const sure = (each) => inShort(each.answer ?? {}).share ?? -1;
const ORDERS = { task: (a, b) => (a.task < b.task ? -1 : 1), sure: (a, b) => sure(b) - sure(a) };

const show = () => {
  const sorted = [...found].sort(ORDERS[order.value]);
  list.replaceChildren(...sorted.slice(0, MOST).map(row));
  if (sorted.length > MOST) list.append(element("li", "faint", `and ${(sorted.length - MOST).toLocaleString("en")} more: search for those that you want to see`));
  byId("order").hidden = found.length < 2;
};

// Yields each line of a response as JSON, as it comes.
const lines = async function* (answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (begun + value).split("\n");
    begun = parts.pop();
    yield parts.filter(Boolean).map((line) => JSON.parse(line));
  }
};

const run = async () => {
  running?.abort();
  const text = form.elements.text.value;
  if (!text.trim()) {
    running = null;
    found = [];
    show();
    return;
  }
  const mine = running = new AbortController();
  list.setAttribute("aria-busy", "true");
  const fresh = [];
  let others = 0;
  let painted = 0;
  try {
    const answer = await fetch("/all", {
      method: "POST", signal: mine.signal, body: JSON.stringify({ text, q: form.elements.q.value }),
      headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" },
    });
    if (!answer.ok) throw problem((await answer.json()).error, answer.status);
    for await (const some of lines(answer)) {
      if (running !== mine) return;
      for (const each of some) {
        if (each.other) others += 1;
        else if (each.task) fresh.push(each);
        else {
          const tasks = `${each.done.toLocaleString("en")} ${each.done === 1 ? "task" : "tasks"}`;
          const batches = `${each.batches.toLocaleString("en")} ${each.batches === 1 ? "batch" : "batches"}`;
          status.textContent = `${tasks} in ${(1000 * each.seconds).toFixed(0)} ms, ${batches} on one base.` + (others ? ` ${others} ${others === 1 ? "takes" : "take"} other inputs.` : "");
        }
      }
      found = fresh;
      if (performance.now() - painted > 100) {
        show();
        painted = performance.now();
      }
    }
    found = fresh;
    show();
  } catch (error) {
    if (error.name === "AbortError" || running !== mine) return;
    status.textContent = error.message;
  }
  list.setAttribute("aria-busy", "false");
};

form.addEventListener("input", debounced(run, 200));
form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
order.addEventListener("change", show);
run();
