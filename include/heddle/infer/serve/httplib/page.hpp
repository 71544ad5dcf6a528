// heddle/infer/serve/httplib/page.hpp: the chat page that the inference server has at /.
#pragma once

#include <string_view>

namespace heddle::inline v0::infer::detail {

// One HTML file without anything from elsewhere. Texts of the model and of errors are text nodes, never HTML.
inline constexpr std::string_view chat_page = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>heddle</title>
<style>
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem; color: #222; background: #fff; }
h1 { font-size: 1.1rem; }
#log p { white-space: pre-wrap; overflow-wrap: anywhere; padding: .5rem .75rem; border-radius: .5rem; }
.user { background: #e8eef7; }
.assistant { background: #f3f3f3; }
.error { background: #fbe5e5; }
textarea, input { font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; }
fieldset { border: 0; padding: 0; display: flex; gap: .75rem; align-items: end; flex-wrap: wrap; }
fieldset label { flex: 1; min-width: 7rem; }
button { font: inherit; padding: .5rem 1rem; }
</style>
</head>
<body>
<h1>heddle <span id="model"></span></h1>
<div id="log" role="log" aria-live="polite"></div>
<form id="form">
<label>Message<textarea id="text" rows="3" required autofocus></textarea></label>
<fieldset>
<label>Temperature<input id="temperature" type="number" min="0" max="2" step="0.1" value="0.7"></label>
<label>Most tokens<input id="most" type="number" min="1" step="1" value="256"></label>
<label>Key, if one is needed<input id="key" type="password" autocomplete="off"></label>
<button id="send">Send</button>
<button id="stop" type="button" disabled>Stop</button>
</fieldset>
</form>
<script>
"use strict";
const get = id => document.getElementById(id);
const messages = [];
let running = null;
function show(kind, text) {
  const p = document.createElement("p");
  p.className = kind;
  p.textContent = text;
  get("log").append(p);
  return p;
}
async function* lines(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
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
  const headers = { "Content-Type": "application/json" };
  if (get("key").value) headers.Authorization = "Bearer " + get("key").value;
  running = new AbortController();
  const answer = await fetch("/v1/chat/completions", {
    method: "POST", headers, signal: running.signal,
    body: JSON.stringify({ messages, stream: true, temperature: get("temperature").valueAsNumber,
                           max_tokens: get("most").valueAsNumber }) });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const p = show("assistant", "");
  try {
    for await (const line of lines(answer.body)) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      const text = event.choices.length ? event.choices[0].delta.content : null;
      if (text) p.textContent += text;
    }
  } finally {
    messages.push({ role: "assistant", content: p.textContent });
  }
}
get("form").addEventListener("submit", async event => {
  event.preventDefault();
  if (running) return;
  const text = get("text").value;
  messages.push({ role: "user", content: text });
  show("user", text);
  get("text").value = "";
  get("send").disabled = true;
  get("stop").disabled = false;
  try {
    await ask();
  } catch (e) {
    if (e.name !== "AbortError") show("error", e.message);
    if (messages.length && messages[messages.length - 1].role === "user") messages.pop();
  } finally {
    running = null;
    get("send").disabled = false;
    get("stop").disabled = true;
    get("text").focus();
  }
});
get("text").addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    get("form").requestSubmit();
  }
});
get("stop").addEventListener("click", () => running && running.abort());
fetch("/v1/models").then(r => r.json()).then(m => { get("model").textContent = m.data[0].id; });
</script>
</body>
</html>
)html";

}  // namespace heddle::inline v0::infer::detail
