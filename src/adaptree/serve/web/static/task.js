// The page of a task: try it, the words that an answer rests on, rows behind the confusion matrix, a file to evaluate.
import { ask, byId, element, inAddress, problem } from "./app.js";
import { scored } from "./answers.js";
import { answering } from "./try.js";

const form = byId("try");

if (form) {
  const task = form.dataset.task;
  const why = byId("why");
  const words = byId("words");
  let given = null;
  const answered = (input) => {
    given = input;
    words.replaceChildren();
    if (why) why.disabled = input === null;
  };
  form.addEventListener("input", () => answered(null)); // the words of an older text are of no use
  const predict = answering(form, { task: () => task, onAnswer: answered });

  const examples = JSON.parse(form.dataset.examples);
  form.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-example]");
    if (!chip) return;
    for (const [name, value] of Object.entries(examples[chip.dataset.example])) form.elements[name].value = value;
    predict();
  });

  why?.addEventListener("click", async () => {
    const asked = given;
    why.disabled = true;
    words.replaceChildren(element("p", "faint", "Looking at each word …"));
    try {
      const found = await ask(`/words/${inAddress(task)}`, { json: { inputs: [asked] } });
      if (asked !== given) return;
      const shown = found.explanations.map(scored);
      words.replaceChildren(...(shown.length ? shown : [element("p", "faint", "There is nothing to explain.")]));
    } catch (error) {
      if (asked === given) words.replaceChildren(element("p", "problem", error.message));
    }
    why.disabled = given === null;
  });
}

// A confusion matrix: a cell chooses the rows below.
const choosing = (box) => {
  box.querySelector("[data-held-out]")?.addEventListener("click", (event) => showAll(box, event.target));
  const note = box.querySelector("[data-note]");
  const rows = [...box.querySelectorAll(".rows tbody tr")];
  const cells = [...box.querySelectorAll("button.cell")];
  const show = (cell) => {
    cells.forEach((each) => each.setAttribute("aria-pressed", String(each === cell)));
    const mine = (row) => !cell || (row.dataset.gold === cell.dataset.gold && row.dataset.predicted === cell.dataset.predicted);
    let count = 0;
    for (const row of rows) {
      row.hidden = !mine(row);
      row.classList.toggle("later", !cell && rows.indexOf(row) >= 30);
      count += !row.hidden;
    }
    if (!cell) return void (note.textContent = note.dataset.all);
    const of = Number(cell.getAttribute("aria-label").match(/(\d+) rows$/)?.[1] ?? count);
    const shownOf = count < of ? `${count} of ${of} are kept` : `${count} ${count === 1 ? "row" : "rows"}`;
    const all = element("button", "small", "Show all");
    all.type = "button";
    all.addEventListener("click", () => { show(null); cell.focus(); });
    note.replaceChildren(`gold ${cell.dataset.gold}, predicted ${cell.dataset.predicted}: ${shownOf}. `, all);
  };
  if (!note) return; // no rows to choose from
  cells.forEach((cell) => cell.addEventListener("click", () => show(cell.getAttribute("aria-pressed") === "true" ? null : cell)));
  show(null);
};
const evaluated = async (address, options = {}) => {
  const answer = await fetch(address, { method: "POST", ...options, headers: { Accept: "*/*", ...options.headers } });
  const text = await answer.text();
  if (!answer.ok) throw problem(JSON.parse(text).error, answer.status);
  return document.adoptNode(new DOMParser().parseFromString(text, "text/html").querySelector(".evaluated"));
};

// All rows that the version was scored on take the place of those that its record keeps.
const showAll = async (box, button) => {
  button.disabled = true;
  try {
    const found = (await evaluated(`/held-out/${inAddress(button.dataset.heldOut)}`)).querySelector("[data-confusion]");
    box.replaceWith(found);
    window.prepare(found);
    choosing(found);
    found.querySelector(".rows")?.closest("[tabindex]").focus();
  } catch (error) {
    button.nextElementSibling.textContent = error.message;
    button.disabled = false;
  }
};
document.querySelectorAll("[data-confusion]").forEach(choosing);

byId("evaluate-form")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const file = event.target.elements.file.files[0];
  const note = byId("evaluate-note");
  const button = event.target.querySelector("button");
  button.disabled = true;
  note.className = "faint";
  note.textContent = "Evaluating …";
  try {
    const address = `/evaluate/${inAddress(form.dataset.task)}?name=${encodeURIComponent(file.name)}`;
    byId("evaluated").replaceChildren(await evaluated(address, { body: file, headers: { "Content-Type": "application/octet-stream" } }));
    byId("evaluated").querySelectorAll("[data-confusion]").forEach(choosing);
    window.prepare(byId("evaluated"));
    note.textContent = "";
  } catch (error) {
    note.className = "problem";
    note.textContent = error.message;
  }
  button.disabled = false;
});
