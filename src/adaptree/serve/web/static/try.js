// A form that answers as one types: the newest input counts, and answers to older ones are dropped.
import { ask, byId, debounced, inAddress } from "./app.js";
import { shown } from "./answers.js";

// What the API takes, from the fields of a form; null while one is empty.
export const inputOf = (form) => {
  const said = Object.fromEntries([...form.querySelectorAll("textarea")].map((each) => [each.name, each.value]));
  if (said.choices !== undefined) said.choices = said.choices.split("\n").map((each) => each.trim()).filter(Boolean);
  const empty = Object.entries(said).some(([name, value]) => (name === "choices" ? value.length < 2 : !value.trim()));
  if (empty) return null;
  return Object.keys(said).join() === "text" ? said.text : said;
};

// Begins to answer a form; `task` gives the task's name, `onAnswer` is told each input with its answer (or nulls).
export const answering = (form, { task, onAnswer = () => {} }) => {
  const box = byId("answer");
  const took = byId("took");
  let running = null;

  const predict = async () => {
    running?.abort();
    const given = inputOf(form);
    const name = task();
    if (given === null || !name) {
      box.setAttribute("aria-busy", "false");
      onAnswer(null, null);
      return;
    }
    const mine = running = new AbortController();
    box.setAttribute("aria-busy", "true");
    const began = performance.now();
    try {
      const address = `/v1/tasks/${inAddress(name)}/predict`;
      const found = await ask(address, { json: { inputs: [given] }, signal: mine.signal });
      if (running !== mine) return;
      box.replaceChildren(...shown(found.predictions[0], given));
      took.textContent = `${Math.round(performance.now() - began)} ms`;
      onAnswer(given, found.predictions[0]);
    } catch (error) {
      if (error.name === "AbortError" || running !== mine) return;
      box.replaceChildren(...shown({ error: { message: error.message } }, given));
      took.textContent = "";
      onAnswer(null, null);
    }
    box.setAttribute("aria-busy", "false");
  };

  form.addEventListener("input", debounced(predict, 150));
  form.addEventListener("submit", (event) => { event.preventDefault(); predict(); });
  predict();
  return predict;
};
