// What a task answers, as elements: bars, marked words, a number. Texts are never read as HTML.
import { element } from "./app.js";

const MOST = 12;
const TONES = 6;

export const percent = (share) => `${(100 * share).toFixed(share > 0.0995 && share < 0.9995 ? 0 : 1)} %`;

const bar = (name, share, best) => {
  const fill = element("span", "fill");
  fill.style.setProperty("--share", Math.max(0, Math.min(1, share)));
  const row = element("li", best ? "best" : "", element("span", "name", name), element("span", "rail", fill),
    element("span", "number", percent(share)));
  return row;
};

const bars = (pairs, isBest) => {
  const shown = pairs.slice(0, MOST).map(([name, share]) => bar(name, share, isBest(name, share)));
  const list = element("ol", "bars", ...shown);
  if (pairs.length > MOST) list.append(element("li", "faint more", `and ${pairs.length - MOST} more`));
  return list;
};

const byScore = (scores) => Object.entries(scores).sort((a, b) => b[1] - a[1]);

const number = (value) => (Math.abs(value) >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 1 }) : String(Number(value.toPrecision(4))));

// A tone for each label: the same for the same label, whatever else is in the text.
export const tone = (label) => {
  let sum = 0;
  for (const c of label) sum = (sum * 31 + c.codePointAt(0)) % 997;
  return `tone${sum % TONES}`;
};

// A text with some of its characters marked; offsets count code points, as Python does.
export const marked = (text, spans) => {
  const letters = Array.from(text);
  const parts = [];
  let at = 0;
  for (const { start, end, label, kind } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < at) continue;
    parts.push(letters.slice(at, start).join(""));
    const mark = element("mark", kind, letters.slice(start, end).join(""));
    if (label) mark.append(element("span", "label", label));
    parts.push(mark);
    at = end;
  }
  parts.push(letters.slice(at).join(""));
  return element("p", "marked", ...parts);
};

const entities = (answer, given) => {
  const text = typeof given === "string" ? given : given.text ?? answer.tokens.join(" ");
  const spans = answer.entities.filter((each) => each.start !== null).map((each) => (
    { start: each.start, end: each.end, label: each.label, kind: tone(each.label) }));
  const shown = [marked(text, spans)];
  if (!spans.length) shown.push(element("p", "faint", "Nothing found in it."));
  else {
    const list = answer.entities.map((each) => element("li", "", element("mark", tone(each.label), each.text),
      element("span", "faint", ` ${each.label} · ${percent(each.score)}`)));
    shown.push(element("ul", "found", ...list));
  }
  return shown;
};

const span = (answer, given) => {
  if (!answer.answer) return [element("p", "big", "No answer"), element("p", "faint", "The text does not say.")];
  const score = answer.score === null ? "" : percent(answer.score);
  const others = (answer.n_best ?? []).filter((each) => each.answer && each.answer !== answer.answer).slice(0, 3);
  const shown = [element("p", "big", answer.answer, element("span", "faint", ` ${score}`))];
  if (answer.start !== null) shown.push(marked(given.context, [{ start: answer.start, end: answer.end, kind: "tone0" }]));
  if (others.length) shown.push(element("p", "faint", "Or: " + others.map((each) => `${each.answer} (${percent(each.score)})`).join(" · ")));
  return shown;
};

const fills = (answer) => {
  if (!answer.fills.length) {
    return [answer.perplexity === null ? element("p", "faint", "Hide a word as [MASK].")
      : element("p", "big", number(answer.perplexity), element("span", "faint", " perplexity"))];
  }
  return answer.fills.map((words) => bars(words.map((each) => [each.word, each.score]), (_, share) => share === words[0].score));
};

// Returns the elements that show an answer to an input.
export const shown = (answer, given) => {
  if (answer.error) return [element("p", "problem", [answer.error.message, answer.error.hint].filter(Boolean).join(" "))];
  if (answer.entities) return entities(answer, given);
  if ("answer" in answer) return span(answer, given);
  if (answer.fills) return fills(answer);
  if (answer.values) {
    return [element("dl", "numbers", ...Object.entries(answer.values).flatMap(([name, value]) => [
      element("dt", "", name), element("dd", "", value === null ? "–" : number(value))]))];
  }
  if ("value" in answer) return [element("p", "big", answer.value === null ? "–" : number(answer.value))];
  if ("choice" in answer) {
    const pairs = (given.choices ?? []).map((name, i) => [name, answer.scores?.[i] ?? 0]);
    return [bars(pairs, (name) => name === answer.choice)];
  }
  if (answer.labels) {
    const head = answer.labels.length ? answer.labels.map((label) => element("span", "pill", label)) : [element("span", "faint", "none of the labels")];
    return [element("p", "big", ...head), bars(byScore(answer.scores ?? {}), (name) => answer.labels.includes(name))];
  }
  if (answer.scores) return [element("p", "big", String(answer.label ?? "not sure enough")), bars(byScore(answer.scores), (name) => name === String(answer.label))];
  if (answer.label !== undefined) return [element("p", "faint", answer.label === null ? "There is no text yet." : String(answer.label))];
  return [element("pre", "", JSON.stringify(answer, null, 1))];
};

// An answer in a line, for lists of many.
export const inShort = (answer) => {
  if (answer.error) return { text: answer.error.message, bad: true };
  if (answer.entities) return { text: answer.entities.map((each) => `${each.text} (${each.label})`).join(", ") || "nothing found" };
  if ("answer" in answer) return { text: answer.answer || "no answer", share: answer.score };
  if (answer.fills) return answer.fills.length ? { text: answer.fills.map((words) => words[0].word).join(", "), share: answer.fills[0][0].score }
    : { text: answer.perplexity === null ? "–" : `perplexity ${number(answer.perplexity)}` };
  if (answer.values) return { text: Object.entries(answer.values).map(([name, value]) => `${name} ${value === null ? "–" : number(value)}`).join(", ") };
  if ("value" in answer) return { text: answer.value === null ? "–" : number(answer.value) };
  if (answer.labels) return { text: answer.labels.join(", ") || "none of the labels" };
  return { text: String(answer.label ?? "–"), share: answer.score };
};

// The words of a text, coloured by what they add to a prediction.
export const scored = (explanation) => {
  const known = explanation.words.filter((word) => word.score !== null);
  const most = Math.max(1e-9, ...known.map((word) => Math.abs(word.score)));
  const texts = explanation.texts.map((text, part) => {
    const letters = Array.from(text);
    const shown = element("p", "marked");
    let at = 0;
    for (const word of explanation.words.filter((each) => each.part === part)) {
      shown.append(letters.slice(at, word.start).join(""));
      const mark = element("span", word.score === null ? "word unread" : word.score < 0 ? "word against" : "word for", letters.slice(word.start, word.end).join(""));
      mark.style.setProperty("--weight", word.score === null ? 0 : Math.abs(word.score) / most);
      mark.title = word.score === null ? "not read" : word.score.toFixed(2);
      shown.append(mark);
      at = word.end;
    }
    shown.append(letters.slice(at).join(""));
    return shown;
  });
  const sure = explanation.probability === null ? "" : ` (${percent(explanation.probability)})`;
  return element("div", "", element("p", "faint", "What speaks for ", element("b", "", explanation.target), `${sure}, and `, element("span", "word against sample", "against"), " it:"), ...texts);
};
