// Compose: the fields write the composition, and its picture, price and try-it box follow it.
import { ask, byId, debounced, element, tabs } from "./app.js";
import { shown } from "./answers.js";
import { answering, inputOf } from "./try.js";

const form = byId("compose");
const whole = byId("expression");
const operator = byId("operator");
let newest = 0;
let typed = {}; // what is in the try-it box, which a new composition keeps

const picked = () => [...form.querySelectorAll(".pick")].map((each) => each.value.trim()).filter(Boolean);

const written = () => {
  const tasks = operator.value === "drop" ? picked().slice(0, 1) : picked();
  if (!tasks.length || (operator.value !== "drop" && tasks.length < 2)) return "";
  const options = [];
  const weights = byId("weights").value.trim();
  if (operator.value.startsWith("average") && weights) options.push(`weights=[${weights}]`);
  if (operator.value === "drop") options.push(`layers='${byId("layers").value.trim()}'`);
  return `${operator.value}(${[...tasks, ...options].join(", ")})`;
};

const fields = () => {
  byId("layers-field").hidden = operator.value !== "drop";
  byId("weights-field").hidden = !operator.value.startsWith("average");
  form.querySelectorAll(".picks label").forEach((each, i) => { each.hidden = operator.value === "drop" && i > 0; });
  byId("another").hidden = operator.value === "drop";
};

const trying = () => {
  const box = byId("try");
  if (!box) return;
  for (const each of box.querySelectorAll("textarea")) each.value = typed[each.name] ?? "";
  box.addEventListener("input", () => { typed = Object.fromEntries([...box.querySelectorAll("textarea")].map((each) => [each.name, each.value])); });
  const several = JSON.parse(box.dataset.several);
  if (!several.length) return void answering(box, { task: () => box.dataset.task });
  const answer = byId("answer");
  let turn = 0;
  const run = async () => {
    const given = inputOf(box);
    if (given === null) return;
    const mine = ++turn;
    const began = performance.now();
    const item = typeof given === "string" ? { text: given } : given;
    try {
      const found = await ask("/v1/predict", { json: { items: several.map((task) => ({ task, ...item })) } });
      if (mine !== turn) return;
      answer.replaceChildren(...found.predictions.flatMap((each, i) => [element("h3", "", several[i]), ...(each.error ? [element("p", "problem", each.error.message)] : shown(each, given))]));
      byId("took").textContent = `${Math.round(performance.now() - began)} ms`;
    } catch (error) {
      if (mine === turn) answer.replaceChildren(element("p", "problem", error.message));
    }
  };
  box.addEventListener("input", debounced(run, 150));
  run();
};

const show = async () => {
  const turn = ++newest;
  const address = whole.value.trim() ? `/compose?expression=${encodeURIComponent(whole.value.trim())}` : "/compose";
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const found = page.getElementById("composed");
  if (turn !== newest || !found) return;
  byId("composed").replaceWith(document.adoptNode(found));
  byId("composed").querySelectorAll("[data-tabs]").forEach(tabs);
  window.prepare(byId("composed"));
  history.replaceState(null, "", address);
  trying();
};
const soon = debounced(show, 250);

form.addEventListener("input", (event) => {
  fields();
  if (event.target !== whole) {
    const text = written();
    if (!text) return;
    whole.value = text;
  }
  soon();
});
form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
const another = () => {
  const input = element("input", "pick");
  input.setAttribute("list", "names");
  input.autocomplete = "off";
  input.spellcheck = false;
  byId("picks").append(element("label", "field", "One more task", input));
  return input;
};
byId("another").addEventListener("click", () => another().focus());

// A composition that the fields can say is in them, too: an operator with tasks' names.
const read = () => {
  const [, name, inside] = whole.value.match(/^\s*(\w+)\(([^()='"]*)\)\s*$/) ?? [];
  if (![...operator.options].some((each) => each.value === name)) return;
  operator.value = name;
  const picks = [...form.querySelectorAll(".pick")];
  inside.split(",").forEach((task, i) => { (picks[i] ?? another()).value = task.trim(); });
};
read();
fields();
trying();
