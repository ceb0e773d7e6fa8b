// The chat box: one conversation, streamed, with what each answer cost.
import { $, count, el, ms } from "./dom.js";
import { keys, readEvents, whyFailed } from "./events.js";
import { openKeys } from "./live.js";
import { showText } from "./text.js";

let model = null;
let messages = [];
let running = null; // the AbortController of the answer that comes

/** Fills in the model's name; the chat asks again when it is used before that worked. */
export async function loadModel() {
  try {
    const response = await fetch("v1/models", { headers: keys.headers("api-key") });
    if (!response.ok) return;
    model = (await response.json()).data[0];
    $("model").textContent = model.id;
    $("model").title = model.max_model_len ? `${model.id}, up to ${count(model.max_model_len)} tokens` : model.id;
    document.title = `${model.id} · paceline`;
  } catch {
    // the server is away; the live side of the page says so
  }
}

const nearEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 60;

function toEnd(force) {
  const log = $("log");
  if (force || nearEnd(log)) log.scrollTop = log.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = Boolean(controller);
  $("stop").hidden = !controller;
  $("clear").hidden = Boolean(controller) || !messages.length;
}

/** TTFT and rate as this page saw them (docs/reference/metrics.md): tokens of the first chunk are not in the rate. */
class Meter {
  constructor() {
    this.began = performance.now();
    this.first = this.last = null;
    this.firstTokens = this.tokens = 0;
    this.usage = null;
  }

  chunk(tokens) {
    this.last = performance.now();
    if (this.first === null) {
      this.first = this.last;
      this.firstTokens = tokens;
    }
    this.tokens += tokens;
  }

  /** Pairs of label and value, as far as they are known. */
  figures() {
    const tokens = this.usage?.completion_tokens ?? this.tokens;
    const found = [];
    if (this.first !== null) found.push(["TTFT", ms(this.first - this.began)]);
    const later = tokens - this.firstTokens;
    if (later > 0 && this.last > this.first) found.push(["tokens/s", count((1000 * later) / (this.last - this.first))]);
    found.push(["tokens", count(tokens)]);
    if (this.usage) found.push(["cached", `${count(this.usage.prompt_tokens_details?.cached_tokens ?? 0)} of ${count(this.usage.prompt_tokens)}`]);
    return found;
  }
}

function ending(reason) {
  if (reason === "length") return "cut at max tokens";
  return reason === "stop" ? "" : reason;
}

async function answer(node, meter, signal) {
  if (!model) await loadModel();
  const body = {
    model: model?.id ?? "",
    messages,
    stream: true,
    stream_options: { include_usage: true },
    timings: true,
    temperature: Number($("temperature").value),
    max_tokens: Number($("max-tokens").value),
  };
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...keys.headers("api-key") },
    body: JSON.stringify(body),
  });
  if (response.status === 401) {
    openKeys();
    throw new Error("This server wants an API key. Enter it and send again.");
  }
  if (!response.ok) throw new Error(await whyFailed(response));
  const text = document.createTextNode("");
  node.append(text);
  let reason = null;
  let thoughts = null; // where reasoning is shown: it is no part of the answer that is sent back
  let wrong = "";
  for await (const { data } of readEvents(response)) {
    if (data === "[DONE]") continue; // always read to the end: leaving early would count as a failed request
    const value = JSON.parse(data);
    if (value.error) wrong = value.error.message;
    const choice = value.choices?.[0];
    const added = choice?.delta?.content;
    const thought = choice?.delta?.reasoning_content;
    if (thought) {
      if (!thoughts) {
        thoughts = el("p", {});
        node.before(el("details", { class: "thoughts" }, el("summary", {}, "Reasoning"), thoughts));
      }
      thoughts.append(thought);
    }
    if (added || thought) {
      meter.chunk(value.paceline?.num_tokens ?? 1);
      text.appendData(added ?? "");
      toEnd();
    } else if (value.paceline?.num_tokens) {
      meter.tokens += value.paceline.num_tokens;
    }
    if (choice?.finish_reason) reason = choice.finish_reason;
    if (value.usage) meter.usage = value.usage;
  }
  if (wrong) throw new Error(wrong);
  if (reason === null) throw new Error("The connection ended before the answer did.");
  return reason;
}

async function send(prompt) {
  $("blank").hidden = true;
  messages.push({ role: "user", content: prompt });
  const said = el("div", { class: "said" });
  const foot = el("p", { class: "foot" });
  const turn = el("article", { class: "turn answer waiting" }, el("h3", { class: "visually-hidden" }, "Answer"), said, foot);
  $("log").append(el("article", { class: "turn question" }, el("h3", { class: "visually-hidden" }, "You"), el("p", {}, prompt)), turn);
  toEnd(true);
  const controller = new AbortController();
  const meter = new Meter();
  setRunning(controller);
  let note = "";
  let failed = "";
  try {
    note = ending(await answer(said, meter, controller.signal));
  } catch (error) {
    if (controller.signal.aborted) note = "stopped";
    else failed = error instanceof TypeError ? "The server cannot be reached." : error.message;
  }
  turn.classList.remove("waiting");
  const text = said.textContent;
  if (text) {
    messages.push({ role: "assistant", content: text });
    showText(said, text);
  } else {
    messages.pop(); // nothing was answered: the next message starts from before
    if (!failed) said.append(el("span", { class: "nothing" }, note === "stopped" ? "Stopped before the first token." : "The model ended at once, without a word."));
  }
  if (failed) said.after(el("p", { class: "failed", role: "alert" }, failed));
  const figures = text || meter.usage ? meter.figures() : [];
  foot.append(...figures.map(([label, value]) => el("span", {}, `${label} `, el("b", {}, value))), ...(note ? [el("span", { class: "note" }, note)] : []));
  $("spoken").textContent = failed || `Answer: ${text.slice(0, 2000)}`;
  setRunning(null);
  toEnd(!failed);
  $("prompt").focus({ preventScroll: true });
}

function grow() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 200)}px`;
}

export function startChat() {
  const submit = () => {
    const prompt = $("prompt").value.trim();
    if (!prompt || running || !$("composer").reportValidity()) return;
    $("prompt").value = "";
    grow();
    send(prompt);
  };
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  $("prompt").addEventListener("input", grow);
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", () => {
    messages = [];
    for (const turn of document.querySelectorAll(".turn")) turn.remove();
    $("blank").hidden = false;
    $("clear").hidden = true;
    $("prompt").focus();
  });
  $("ideas").addEventListener("click", (event) => {
    if (event.target instanceof HTMLButtonElement) {
      $("prompt").value = event.target.textContent;
      grow();
      $("prompt").focus();
    }
  });
  loadModel();
}
