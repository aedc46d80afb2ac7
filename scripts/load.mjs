// Load on a server: concurrent streaming clients of which some leave in the middle, then many short requests.
//   node scripts/load.mjs [--url URL] [--clients 32] [--seconds 120] [--short 10000] [--tokens 64] [--pid PID]
// Prints one JSON object: errors, sessions left behind, tokens per second of one client and of all, time between tokens,
// memory of the process (--pid) before and after.
import { readFileSync } from "node:fs";

const opt = { url: "http://127.0.0.1:8080", clients: 32, seconds: 120, short: 10000, tokens: 64, pid: 0 };
for (let i = 2; i + 1 < process.argv.length; i += 2) {
  const name = process.argv[i].replace(/^--/, "");
  if (!(name in opt)) throw new Error(`unknown option ${process.argv[i]}`);
  opt[name] = name === "url" ? process.argv[i + 1] : Number(process.argv[i + 1]);
}
const starts = ["Once upon a time", "The king had a daughter", "In the deep forest", "Far over the sea", "An old woman said", "The fox and the wolf"];
let seed = 1;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const errors = [], gaps = [];
let finished = 0, aborted = 0, refused = 0;

function memory() {
  if (!opt.pid) return null;
  return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${opt.pid}/status`, "utf8"))[1]) / 1024;
}

// One streamed answer; leaveAfter tokens the client goes away.
async function stream(leaveAfter) {
  const controller = new AbortController();
  const body = { prompt: starts[Math.floor(random() * starts.length)], max_tokens: opt.tokens, stream: true, ignore_eos: true, seed: Math.floor(random() * 1e6) };
  const response = await fetch(`${opt.url}/v1/completions`, { method: "POST", body: JSON.stringify(body), signal: controller.signal });
  if (response.status === 429) {
    refused++;
    await response.arrayBuffer();
    await new Promise((r) => setTimeout(r, 100));
    return;
  }
  if (!response.ok) throw new Error(`HTTP ${response.status}: ${await response.text()}`);
  let n = 0, last = 0, done = false, rest = "";
  const text = new TextDecoder();
  for await (const piece of response.body) {
    const now = performance.now();
    const lines = (rest + text.decode(piece, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") done = true;
      else if (line.startsWith("data: ")) {
        const event = JSON.parse(line.slice(6));
        if (event.error) throw new Error(event.error.message);
        if (!event.choices[0]?.finish_reason) n++;
      }
    }
    if (last) gaps.push(now - last);
    last = now;
    if (n >= leaveAfter) {
      controller.abort();
      aborted++;
      return n;
    }
  }
  if (!done) throw new Error("the stream ended without its last line");
  finished++;
  return n;
}

async function client(until, leaves) {
  let mine = 0;
  while (performance.now() < until) {
    const leaveAfter = leaves && random() < 0.2 ? 1 + Math.floor(random() * opt.tokens) : Infinity;
    try {
      mine += (await stream(leaveAfter)) ?? 0;
    } catch (e) {
      errors.push(String(e.cause ?? e));
      await new Promise((r) => setTimeout(r, 50));
    }
  }
  return mine;
}

async function measure(clients, seconds, leaves) {
  const begin = performance.now();
  const counts = await Promise.all(Array.from({ length: clients }, () => client(begin + 1000 * seconds, leaves)));
  return counts.reduce((a, b) => a + b, 0) / ((performance.now() - begin) / 1000);
}

async function running() {
  const text = await (await fetch(`${opt.url}/metrics`)).text();
  return Number(/^redlite_requests_running (\d+)/m.exec(text)[1]) + Number(/^redlite_requests_waiting (\d+)/m.exec(text)[1]);
}

async function shortRequests(n) {
  let left = n;
  const begin = performance.now();
  await Promise.all(Array.from({ length: opt.clients }, async () => {
    while (left-- > 0) {
      try {
        const r = await fetch(`${opt.url}/v1/completions`, { method: "POST", body: JSON.stringify({ prompt: "Once", max_tokens: 1 }) });
        const o = await r.json();
        if (r.status !== 200 || o.usage.completion_tokens !== 1) throw new Error(`HTTP ${r.status}`);
      } catch (e) { errors.push(String(e.cause ?? e)); }
    }
  }));
  return n / ((performance.now() - begin) / 1000);
}

const percentile = (list, p) => list.length ? list.sort((a, b) => a - b)[Math.min(list.length - 1, Math.floor(p * list.length))] : 0;
const one = await measure(1, Math.min(10, opt.seconds), false);
const memoryBefore = memory();
gaps.length = 0;
const all = await measure(opt.clients, opt.seconds, true);
const p50 = percentile(gaps, 0.5), p95 = percentile(gaps, 0.95), p99 = percentile(gaps, 0.99);
const short = opt.short ? await shortRequests(opt.short) : 0;
let left = await running();
for (let i = 0; i < 50 && left > 0; i++) {
  await new Promise((r) => setTimeout(r, 100));
  left = await running();
}
const round = (x) => x === null ? null : Math.round(10 * x) / 10;
console.log(JSON.stringify({ errors: errors.length, first_error: errors[0], left_running: left, finished, aborted, refused, one_tokens_per_s: round(one), all_tokens_per_s: round(all), ratio: round(all / one), gap_ms: { p50: round(p50), p95: round(p95), p99: round(p99) }, short_requests_per_s: round(short), memory_mib: { before: round(memoryBefore), after: round(memory()) } }, null, 2));
process.exit(errors.length || left ? 1 : 0);
