// The chat page: one conversation, answers as streams, and a picture of the experts at work. Everything it needs comes from the
// server it was loaded from.
const $ = (id) => document.getElementById(id);
const settings = ["system", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens", "key"];
let turns = []; // {role, content, reasoning}
let running = null; // AbortController of the answer that is being written

// ---- Settings ------------------------------------------------------------------------------------------------------------

function store(name, value) { try { localStorage.setItem(`redlite.${name}`, value); } catch { /* private windows have none */ } }
function recall(name) { try { return localStorage.getItem(`redlite.${name}`) ?? ""; } catch { return ""; } }

for (const name of settings) {
  if (name !== "key") $(name).value = recall(name);
  $(name).addEventListener("input", () => { if (name !== "key") store(name, $(name).value); });
}
$("key").addEventListener("change", showModel);

function headers() {
  const key = $("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function request() {
  const body = { stream: true, stream_options: { include_usage: true }, messages: [] };
  for (const name of settings.slice(1, -1)) if ($(name).value !== "") body[name] = Number($(name).value);
  if ($("system").value) body.messages.push({ role: "system", content: $("system").value });
  for (const t of turns) {
    body.messages.push({ role: t.role, content: t.content, ...(t.reasoning && { reasoning_content: t.reasoning }) });
  }
  return body;
}

async function showModel() {
  try {
    const r = await fetch("v1/models", { headers: headers() });
    const o = await r.json();
    $("model").textContent = r.ok ? o.data[0].id : o.error.message;
  } catch { $("model").textContent = "the server does not answer"; }
}

// ---- Conversation --------------------------------------------------------------------------------------------------------

function show(turn) {
  const box = document.createElement("article");
  box.className = `turn ${turn.role}`;
  turn.body = document.createElement("div");
  box.append(turn.body);
  turn.box = box;
  $("log").append(box);
  fill(turn);
}

function fill(turn) {
  const log = $("log"), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  if (turn.reasoning && !turn.details) {
    turn.details = document.createElement("details");
    turn.details.innerHTML = "<summary>Reasoning</summary><div></div>";
    turn.box.prepend(turn.details);
  }
  if (turn.details) turn.details.lastChild.textContent = turn.reasoning;
  turn.body.textContent = turn.content;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function note(turn, text) {
  const small = document.createElement("small");
  small.textContent = text;
  turn.box.append(small);
}

function fail(message) {
  const turn = { role: "error", content: message };
  show(turn);
  $("log").scrollTop = $("log").scrollHeight;
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = !!controller;
  $("again").disabled = !!controller || !turns.some((t) => t.role === "assistant");
}

// Events and comments of a stream, as they come.
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line) yield line;
  }
}

function speeds(t) {
  const read = t.prompt_seconds > 0 && t.prompt_tokens > 0 ? `${t.prompt_tokens} tokens read at ${(t.prompt_tokens / t.prompt_seconds).toFixed(0)}/s, ` : "";
  return `${read}${t.answer_tokens} written at ${(t.answer_tokens / Math.max(t.answer_seconds, 1e-6)).toFixed(1)}/s`;
}

async function readAnswer(response, answer) {
  let count = 0, first = 0, reason = "";
  for await (const line of lines(response.body)) {
    const progress = /^: (prefill|queued) (\d+)\/(\d+)/.exec(line);
    if (progress) {
      $("status").textContent = progress[1] === "queued" ? "waiting for a place" : `reading the prompt: ${progress[2]} of ${progress[3]} tokens`;
      continue;
    }
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const o = JSON.parse(line.slice(6));
    if (o.error) throw new Error(o.error.message);
    const delta = o.choices[0]?.delta ?? {};
    reason = o.choices[0]?.finish_reason ?? reason;
    if (delta.content || delta.reasoning_content) {
      answer.content += delta.content ?? "";
      answer.reasoning += delta.reasoning_content ?? "";
      first ||= performance.now();
      count++;
      fill(answer);
      const seconds = (performance.now() - first) / 1000;
      $("status").textContent = seconds > 0.3 ? `${(count / seconds).toFixed(1)} tok/s` : "writing";
    }
    if (o.timings) note(answer, speeds(o.timings) + (reason === "length" ? ", cut at the limit" : ""));
  }
}

async function respond() {
  const controller = new AbortController();
  const body = request();
  const answer = { role: "assistant", content: "", reasoning: "" };
  setRunning(controller);
  $("status").textContent = "sent";
  try {
    const r = await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: controller.signal });
    if (!r.ok) throw new Error((await r.json()).error?.message ?? `HTTP ${r.status}`);
    turns.push(answer);
    show(answer);
    await readAnswer(r, answer);
    $("status").textContent = "";
  } catch (e) {
    if (e.name === "AbortError") $("status").textContent = "stopped";
    else { fail(e.message); $("status").textContent = ""; }
  }
  setRunning(null);
}

function send(event) {
  event?.preventDefault();
  const text = $("input").value;
  if (running || !text.trim()) return;
  $("input").value = "";
  const turn = { role: "user", content: text };
  turns.push(turn);
  show(turn);
  $("log").scrollTop = $("log").scrollHeight;
  respond();
}

function again() {
  if (running) return;
  while (turns.length && turns.at(-1).role === "assistant") turns.pop().box.remove();
  if (turns.length) respond();
}

function restart() {
  running?.abort();
  turns = [];
  $("log").replaceChildren();
  $("status").textContent = "";
  $("input").focus();
  setRunning(null);
}

// ---- Experts -------------------------------------------------------------------------------------------------------------
// A row is a layer, a column an expert: the colour is how often it is chosen, white flashes mark what was chosen just now.

let before = null, heat = null, watching = false;

function draw(o) {
  const canvas = $("grid");
  if (canvas.width !== o.experts || canvas.height !== o.layers) { canvas.width = o.experts; canvas.height = o.layers; }
  canvas.style.height = `${Math.max(o.layers * (o.experts > 128 ? 8 : 20), 80)}px`;
  const g = canvas.getContext("2d"), image = g.createImageData(o.experts, o.layers);
  heat ??= new Float32Array(o.counts.length);
  let active = 0;
  o.counts.forEach((n, i) => {
    const fresh = before ? n - before[i] : 0;
    if (fresh > 0) active++;
    heat[i] = heat[i] * 0.93 + fresh;
  });
  const most = heat.reduce((a, b) => Math.max(a, b), 1);
  o.counts.forEach((n, i) => {
    const h = Math.sqrt(heat[i] / most), flash = before && n > before[i] ? 70 : 0;
    image.data.set([Math.min(255, 30 + 225 * h + flash), Math.min(255, 24 + 90 * h * h + flash), Math.min(255, 22 + 40 * h + flash), 255], 4 * i);
  });
  g.putImageData(image, 0, 0);
  before = o.counts;
  $("expert-note").textContent = `${o.layers} layers of ${o.experts} experts, ${o.used} for a token. ${active} chosen in the last moment; ${o.running} answers running, ${o.waiting} waiting.`;
  const c = o.cache;
  $("cache").textContent = !c ? "All experts are in memory." : `Cache: ${c.slots} of ${c.experts} experts (${c.residency}); ${(100 * c.hits / Math.max(c.hits + c.misses, 1)).toFixed(1)} % hits; ${(c.bytes_read / 2 ** 30).toFixed(2)} GiB read, ${c.wait_seconds.toFixed(1)} s waited.`;
}

async function watch() {
  if (watching) return;
  watching = true;
  while (!$("experts").hidden) {
    try {
      const r = await fetch("experts", { headers: headers() });
      if (r.ok) draw(await r.json());
    } catch { /* the next look may succeed */ }
    await new Promise((r) => setTimeout(r, document.hidden ? 2000 : 250));
  }
  watching = false;
}

// ---- Controls ------------------------------------------------------------------------------------------------------------

function toggle(name) {
  const panel = $(name), button = $(`toggle-${name}`);
  panel.hidden = !panel.hidden;
  button.setAttribute("aria-pressed", String(!panel.hidden));
  if (name === "experts" && !panel.hidden) watch();
}

$("form").addEventListener("submit", send);
$("again").addEventListener("click", again);
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", restart);
$("toggle-settings").addEventListener("click", () => toggle("settings"));
$("toggle-experts").addEventListener("click", () => toggle("experts"));
$("input").addEventListener("keydown", (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) send(e); });
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape") running?.abort();
  if (!e.altKey) return;
  const action = { n: restart, e: () => toggle("experts"), s: () => toggle("settings") }[e.key.toLowerCase()];
  if (action) { e.preventDefault(); action(); }
});
showModel();
