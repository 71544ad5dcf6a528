// heddle/infer/serve/http/page.hpp: the chat page that the inference server has at /.
#pragma once

#include <string_view>

namespace heddle::inline v0::infer::detail {

// One HTML file without anything from elsewhere. Texts of the model and of errors are text nodes, never HTML.
inline constexpr std::string_view chat_page = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content">
<meta name="color-scheme" content="light dark">
<title>heddle</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='3' fill='%232b5c9e'/%3E%3Cpath d='M4 3v10M8 3v10M12 3v10M2 8h12' stroke='%23fff' stroke-width='1.5'/%3E%3C/svg%3E">
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #1d2128; --faint: #5c6470; --line: #c9ced6; --field: #fff;
  --user: #e6eef9; --model: #f2f3f5; --wrong: #fbe6e6; --act: #24528f; --on-act: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15181d; --ink: #e7eaee; --faint: #a2abb7; --line: #444c57; --field: #1d2127;
    --user: #22364f; --model: #23272e; --wrong: #51262a; --act: #8ab8f2; --on-act: #10151c; } }
* { box-sizing: border-box; }
html, body { height: 100%; }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 0; color: var(--ink); background: var(--page);
  display: flex; flex-direction: column; height: 100dvh; }
header, #form, #turns { width: 100%; max-width: 46rem; margin: 0 auto; padding: .5rem 1rem; }
header { display: flex; align-items: center; gap: .75rem; }
h1 { font-size: 1.1rem; margin: 0; flex: 1; min-width: 0; overflow-wrap: anywhere; }
#model, #state { font-weight: normal; color: var(--faint); }
#log { flex: 1; min-height: 0; overflow-y: auto; scrollbar-gutter: stable both-edges; border-block: 1px solid var(--line); }
.turn { margin: .5rem 0; }
.turn > div { display: flex; align-items: center; justify-content: space-between; }
h2 { font-size: .85rem; color: var(--faint); margin: 0; }
.turn p { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem .75rem; border-radius: .5rem; margin: .15rem 0; }
.user { background: var(--user); }
.assistant { background: var(--model); min-height: 2.5rem; }
.turn .note { color: var(--faint); font-size: .85rem; padding: 0 .75rem; }
.error { background: var(--wrong); }
textarea, input { font: inherit; color: inherit; background: var(--field); border: 1px solid var(--line);
  border-radius: .4rem; width: 100%; padding: .5rem; display: block; }
textarea { resize: vertical; field-sizing: content; min-height: 3rem; max-height: 30dvh; }
button { font: inherit; color: var(--act); background: none; border: 1px solid var(--line); border-radius: .4rem;
  padding: .4rem .9rem; cursor: pointer; white-space: nowrap; }
#send, #stop { color: var(--on-act); background: var(--act); border-color: var(--act); min-height: 3rem; }
#send:disabled, #stop:disabled { display: none; }
.copy { font-size: .85rem; padding: .1rem .6rem; }
summary { cursor: pointer; color: var(--faint); padding: .25rem 0; }
#settings[open] { max-height: 45dvh; overflow-y: auto; }
fieldset { border: 0; padding: 0; margin: 0 0 .5rem; display: grid; gap: .5rem; grid-template-columns: repeat(auto-fit, minmax(min(12rem, 45%), 1fr)); }
fieldset label:first-child { grid-column: 1 / -1; }
label { font-size: .85rem; color: var(--faint); }
label > * { font-size: 1rem; color: var(--ink); }
.row { display: flex; gap: .5rem; align-items: end; }
.row textarea { flex: 1; min-width: 0; }
:focus-visible { outline: 2px solid var(--act); outline-offset: -1px; }
</style>
</head>
<body>
<header>
<h1>heddle <span id="model"></span> <span id="state" role="status"></span></h1>
<button id="new" type="button">New chat</button>
</header>
<div id="log" tabindex="-1"><div id="turns" role="log" aria-label="Conversation"></div></div>
<form id="form">
<details id="settings">
<summary>Settings</summary>
<fieldset>
<label>System prompt<textarea id="system" rows="2"></textarea></label>
<label>Temperature<input id="temperature" type="number" min="0" max="2" step="any" placeholder="the server's"></label>
<label>Most tokens<input id="most" type="number" min="1" step="1" placeholder="as many as fit"></label>
<label>Key, if one is needed<input id="key" type="password" autocomplete="off"></label>
</fieldset>
</details>
<div class="row">
<textarea id="text" rows="1" required autofocus aria-label="Message" placeholder="Message" enterkeyhint="send"></textarea>
<button id="send">Send</button>
<button id="stop" type="button" disabled>Stop</button>
</div>
</form>
<script>
"use strict";
const get = id => document.getElementById(id);
const log = get("log"), turns = get("turns"), kept = ["system", "temperature", "most"];
let messages = [], running = null;

// What was said, and the settings, are kept in this browser; the key only as long as its tab is open.
function save() {
  try {
    const settings = Object.fromEntries(kept.map(id => [id, get(id).value]));
    localStorage.setItem("heddle-chat", JSON.stringify({ messages, settings }));
    sessionStorage.setItem("heddle-key", get("key").value);
  } catch { }
}
function load() {
  try {
    get("key").value = sessionStorage.getItem("heddle-key") || "";
    const { messages: said, settings } = JSON.parse(localStorage.getItem("heddle-chat"));
    for (const id of kept) get(id).value = settings[id] || "";
    messages = said.filter(m => (m.role === "user" || m.role === "assistant") && typeof m.content === "string");
    while (messages.length && !messages[messages.length - 1].content) messages.pop();
    if (messages.length % 2) get("text").value = messages.pop().content;  // it has no answer
  } catch { }
  for (const m of messages) show(m.role, m.content);
}

function element(name, kind, text) {
  const e = document.createElement(name);
  e.className = kind;
  e.textContent = text;
  return e;
}
// A turn of the conversation, or an error; its paragraph.
function show(kind, text) {
  const turn = element("article", "turn", ""), head = element("div", "", ""), p = element("p", kind, text);
  head.append(element("h2", "", { user: "You", assistant: "Model", error: "Error" }[kind]));
  if (kind === "assistant") {
    const button = element("button", "copy", "Copy");
    button.addEventListener("click", () => copy(p, button));
    head.append(button);
  }
  turn.append(head, p);
  turns.append(turn);
  if (kind === "error") turn.setAttribute("role", "alert");
  toEnd();
  return p;
}
// While the end is in view it stays there, also where a keyboard opens; who has scrolled up is left alone.
let follows = true, height = 0;
function toEnd() {
  log.scrollTop = log.scrollHeight;
  follows = true;
}
log.addEventListener("scroll", () => {
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 48) follows = true;
  else if (log.scrollTop < height) follows = false;  // not where text has come since
  height = log.scrollTop;
});
const grown = new ResizeObserver(() => follows && toEnd());
grown.observe(log);
grown.observe(turns);
async function copy(p, button) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(p.textContent);
  } catch {  // a page that came without TLS has no clipboard
    getSelection().selectAllChildren(p);
    copied = document.execCommand("copy");
  }
  button.textContent = copied ? "Copied" : "Not copied";
  setTimeout(() => button.textContent = "Copy", 1500);
}

async function* lines(body) {
  const decoder = new TextDecoder(), reader = body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value || new Uint8Array(), { stream: !done });
    const parts = rest.split("\n");
    rest = parts.pop();
    yield* parts;
    if (done) return;
  }
}
async function ask() {
  const headers = { "Content-Type": "application/json" }, system = get("system").value;
  if (get("key").value) headers.Authorization = "Bearer " + get("key").value;
  const number = id => get(id).value === "" ? undefined : get(id).valueAsNumber;
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", headers, signal: running.signal,
    body: JSON.stringify({ messages: (system ? [{ role: "system", content: system }] : []).concat(messages),
                           stream: true, temperature: number("temperature"), max_tokens: number("most") }) });
  if (!answer.ok) {
    if (answer.status === 401) get("settings").open = true;
    const body = await answer.json().catch(() => null);
    throw new Error(body && body.error ? body.error.message : "The server answered with status " + answer.status);
  }
  const p = show("assistant", ""), said = { role: "assistant", content: "" };
  messages.push(said);
  let ended = false;
  try {
    for await (const line of lines(answer.body)) {
      if (line === "data: [DONE]") ended = true;
      if (!line.startsWith("data: ") || ended) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0];
      if (choice && choice.delta.content) p.append(choice.delta.content), said.content += choice.delta.content;
      if (choice && choice.finish_reason === "length") note(p, "The answer ends here because it has as many tokens as it may.");
    }
    if (!ended) throw new Error("The connection ended before the answer did");
    if (!said.content) note(p, "The answer is empty.");
  } catch (e) {
    if (!said.content) {
      forget(said);
      p.parentNode.remove();
      throw e;
    }
    note(p, e.name === "AbortError" ? "Stopped." : "Not finished: " + e.message);
  }
}
function forget(message) { messages = messages.filter(m => m !== message); }
function note(p, text) { p.after(element("p", "note", text)); }

get("form").addEventListener("submit", async event => {
  event.preventDefault();
  const field = get("text"), text = field.value;
  if (running || !text.trim()) return;
  running = new AbortController();
  const mine = running;
  for (const p of document.querySelectorAll(".error")) p.parentNode.remove();
  const asked = show("user", text), message = { role: "user", content: text };
  messages.push(message);
  field.value = "";
  get("send").disabled = true;
  get("stop").disabled = false;
  try {
    await ask();
  } catch (e) {  // as if it had not been asked
    forget(message);
    asked.parentNode.remove();
    if (mine === running) {
      if (!field.value) field.value = text;
      if (e.name !== "AbortError") show("error", e.message);
    }
  }
  if (mine !== running) return;
  get("send").disabled = false;
  get("stop").disabled = true;
  running = null;
  save();
  if (matchMedia("(hover: hover)").matches) field.focus();  // elsewhere it would open a keyboard over the answer
});
get("text").addEventListener("keydown", event => {
  // Enter that ends a composition is the input method's; keyCode 229 where the composition has just ended.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  get("form").requestSubmit();
});
get("stop").addEventListener("click", () => running && running.abort());
get("new").addEventListener("click", () => {
  if (running) running.abort();
  running = null;
  messages = [];
  turns.replaceChildren();
  get("send").disabled = false;
  get("stop").disabled = true;
  save();
  get("text").focus();
});
addEventListener("pagehide", save);

// The model's name, and whether it is there already.
async function look() {
  for (;;) {
    try {
      const about = await (await fetch("/v1/models")).json();
      if (about.data && about.data.length) get("model").textContent = about.data[0].id;
      const health = await fetch("/health");
      get("state").textContent = health.ok ? "" : "is loading";
      if (health.ok && get("model").textContent) return;
    } catch {
      get("state").textContent = "cannot be reached";
    }
    await new Promise(resolve => setTimeout(resolve, 1000));
  }
}
load();
look();
</script>
</body>
</html>
)html";

}  // namespace heddle::inline v0::infer::detail
