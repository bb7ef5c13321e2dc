// The chat page: turns, the answer as it comes, and beside it how fast and over which nodes. What a model says is text
// and nothing else: it is only ever put into text nodes.

import { answer } from "./answer.js";

const ROUTE_EVERY_MS = 1000;
const at = (id) => document.getElementById(id);
const hint = at("hint"), page = at("chat"), form = at("ask"), said = at("said"), doing = at("doing");

let turns = []; // {role, content}, as the model gets them
let running = null; // the AbortController of the answer that comes

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running || !at("model").value) return;
  at("text").value = "";
  ask(text);
});
at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
at("stop").addEventListener("click", () => running?.abort());
at("anew").addEventListener("click", () => {
  running?.abort();
  turns = [];
  said.replaceChildren(hint);
  doing.textContent = "";
  at("text").focus();
});

async function ask(text) {
  const before = turns;
  turns = [...before, { role: "user", content: text }];
  const model = at("model").value;
  const question = bubble("You", "you"), mine = bubble(model, "model"), figures = new Figures();
  question.append(text);
  const words = mine.appendChild(document.createTextNode(""));
  const asked = { model, messages: [...instructions(), ...turns], meshnet: { trace: true } };
  if (number("temperature") !== null) asked.temperature = number("temperature");
  if (number("most")) asked.max_tokens = number("most");
  const control = begin();
  let reason = null;
  try {
    for await (const event of answer(page.dataset.answer, form.elements.csrfmiddlewaretoken.value, asked, control.signal)) {
      if (event.id) watchRoute(event.id, control);
      if (event.text === undefined) continue;
      keepingTheEnd(() => words.appendData(event.text));
      figures.add(event.count, event.text);
      reason = event.reason ?? reason;
    }
    doing.textContent = `Done: ${figures.inWords()}.`;
    if (reason === "length") below(mine, note("Cut off: the answer may have no more tokens. Settings or the model's context say how many."));
  } catch (error) {
    if (control.signal.aborted) {
      doing.textContent = `Stopped: ${figures.inWords()}.`;
      below(mine, note("Stopped."));
    } else {
      doing.textContent = "Failed.";
      below(mine, failure(error.message, () => {
        question.parentNode.remove();
        mine.parentNode.remove();
        turns = before;
        ask(text);
      }));
    }
  } finally {
    end(control, figures);
  }
  // Half an answer is a turn, too; none at all takes the question along, since models want turns that alternate.
  if (turns.length === before.length + 1) turns = words.data ? [...turns, { role: "assistant", content: words.data }] : before;
}

function begin() {
  running = new AbortController();
  said.setAttribute("aria-busy", "true");
  doing.textContent = "Answering …";
  at("stop").disabled = false;
  at("send").disabled = true;
  at("route").replaceChildren();
  return running;
}

function end(control, figures) {
  figures.end();
  if (running !== control) return;
  running = null;
  said.setAttribute("aria-busy", "false");
  const hadFocus = document.activeElement === at("stop");
  at("stop").disabled = true;
  at("send").disabled = false;
  if (hadFocus) at("text").focus();
}

// Time to the first token, tokens a second after it, tokens, time: as this browser sees them.
class Figures {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.count = this.atFirst = 0;
    this.timer = setInterval(() => this.show(), 250);
    this.show();
  }

  add(count, text) {
    this.count += count;
    if (this.first === null && text) { this.first = performance.now(); this.atFirst = this.count; }
  }

  get perSecond() {
    const s = ((this.ended ?? performance.now()) - this.first) / 1000; // waiting for a node that was lost counts, too
    return this.first !== null && s > 0 && this.count > this.atFirst ? (this.count - this.atFirst) / s : null;
  }

  show() {
    const s = ((this.ended ?? performance.now()) - this.began) / 1000;
    at("first").textContent = this.first === null ? "–" : `after ${Math.round(this.first - this.began)} ms`;
    at("speed").textContent = this.perSecond === null ? "–" : `${this.perSecond.toFixed(1)} tokens a second`;
    at("tokens").textContent = String(this.count);
    at("time").textContent = `${s.toFixed(1)} s`;
  }

  end() {
    clearInterval(this.timer);
    this.ended = performance.now();
    this.show();
  }

  inWords() {
    const s = (performance.now() - this.began) / 1000;
    return `${this.count} ${this.count === 1 ? "token" : "tokens"} in ${s.toFixed(1)} s`;
  }
}

// Looks again while the answer runs, and until the site has written its end.
async function watchRoute(id, control) {
  let lasts = 5;
  while ((running === control || lasts-- > 0) && (running === control || running === null)) {
    try {
      const told = await fetch(page.dataset.route.replace("ID", id), { credentials: "same-origin", signal: AbortSignal.timeout(5000) });
      if (told.ok && (running === control || running === null)) {
        at("route").innerHTML = await told.text(); // the site's own page, and escaped there
        if (running !== control && at("route").querySelector("[data-running=no]")) return;
      }
    } catch { /* the next look may find the site again */ }
    await new Promise((resolve) => setTimeout(resolve, ROUTE_EVERY_MS));
  }
}

function instructions() {
  const content = at("instructions").value.trim();
  return content ? [{ role: "system", content }] : [];
}

function number(id) {
  const value = at(id).valueAsNumber;
  return Number.isFinite(value) ? value : null;
}

function bubble(who, kind) {
  hint.remove();
  const turn = Object.assign(document.createElement("div"), { className: `turn ${kind}` });
  const name = Object.assign(document.createElement("strong"), { className: "who", textContent: who });
  const text = Object.assign(document.createElement("div"), { className: "text" });
  turn.append(name, text);
  keepingTheEnd(() => said.append(turn), true);
  return text;
}

function below(text, told) {
  keepingTheEnd(() => text.after(told));
}

function note(words) {
  return Object.assign(document.createElement("p"), { className: "note", textContent: words });
}

function failure(words, again) {
  const told = Object.assign(document.createElement("p"), { className: "bad" });
  told.setAttribute("role", "alert");
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Try again" });
  button.addEventListener("click", () => running || again());
  told.append(`✕ ${words} `, button);
  return told;
}

// Whoever reads further up is left there.
function keepingTheEnd(change, always = false) {
  const wasAtEnd = said.scrollHeight - said.scrollTop - said.clientHeight < 40;
  change();
  if (wasAtEnd || always) said.scrollTop = said.scrollHeight;
}

// The list of models is live, and what can be chosen follows it. What is chosen stays: nobody else is asked unawares.
function takeModels() {
  const choice = at("model"), chosen = choice.value;
  for (const { dataset: { model, answers } } of document.querySelectorAll("#live [data-model]")) {
    let option = [...choice.options].find((one) => one.value === model);
    if (!option) choice.add((option = new Option(model, model)));
    option.disabled = answers === "no";
    option.text = option.disabled ? `${model} (can't answer now)` : model;
  }
  choice.value = chosen || ([...choice.options].find((one) => !one.disabled)?.value ?? "");
}
new MutationObserver(takeModels).observe(at("live"), { childList: true, subtree: true, attributes: true });
takeModels();
at("text").focus();
