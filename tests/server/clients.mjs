// The official openai and @anthropic-ai/sdk clients against a server on the bundled model: REDLITE_URL names it, or it is
// started from build/redlite. Answers of the small model are nonsense; what is checked is the protocol.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import test, { after, before } from "node:test";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const root = path.resolve(import.meta.dirname, "../..");
const port = 20000 + (process.pid % 20000);
let url = process.env.REDLITE_URL, server, openai, anthropic;

before(async () => {
  if (!url) {
    server = spawn(`${root}/build/redlite`, ["serve", "-p", port, "--api-key", "sesame", "--no-request-log"], { stdio: ["ignore", "ignore", "inherit"] });
    url = `http://127.0.0.1:${port}`;
    for (let i = 0; i < 200; i++) {
      try { if ((await fetch(`${url}/health`)).ok) break; } catch { await new Promise((r) => setTimeout(r, 100)); }
    }
  }
  openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sesame", maxRetries: 0 });
  anthropic = new Anthropic({ baseURL: url, apiKey: "sesame", maxRetries: 0 });
});

after(async () => {
  if (!server) return;
  server.kill("SIGTERM");
  const [code] = await once(server, "exit");
  assert.equal(code, 0);
});

const model = "any", messages = [{ role: "user", content: "Tell me of a fox." }];
const tide = {
  name: "tide",
  description: "Height of the tide in metres",
  parameters: { type: "object", properties: { port: { type: "string", maxLength: 12 }, hours: { type: "integer" } }, required: ["port"] },
};
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 8 }, legs: { type: "integer" }, tags: { type: "array", items: { enum: ["red", "sly"] }, maxItems: 2 } },
  required: ["name", "legs", "tags"],
  additionalProperties: false,
};

test("openai: models", async () => {
  const list = await openai.models.list();
  assert.equal(list.data.length, 1);
});

test("openai: chat, whole and streamed, are the same", async () => {
  const common = { model, messages, max_tokens: 20, seed: 3 };
  const whole = await openai.chat.completions.create(common);
  assert.equal(whole.usage.completion_tokens, 20);
  let text = "", usage;
  for await (const chunk of await openai.chat.completions.create({ ...common, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, 20);
});

test("openai: log probabilities", async () => {
  const r = await openai.chat.completions.create({ model, messages, max_tokens: 4, logprobs: true, top_logprobs: 2 });
  assert.equal(r.choices[0].logprobs.content.length, 4);
  assert.equal(r.choices[0].logprobs.content[0].top_logprobs.length, 2);
});

test("openai: tools, there and back", async () => {
  const tools = [{ type: "function", function: tide }];
  const first = await openai.chat.completions.create({ model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 120 });
  const message = first.choices[0].message;
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  assert.equal(message.tool_calls[0].function.name, "tide");
  assert.equal(typeof JSON.parse(message.tool_calls[0].function.arguments).port, "string");
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "4.1" };
  const second = await openai.chat.completions.create({ model, messages: [...messages, message, result], tools, max_tokens: 8 });
  assert.ok(second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
});

test("openai: streamed calls join to the whole", async () => {
  const stream = openai.chat.completions.stream({ model, messages, tools: [{ type: "function", function: tide }], tool_choice: { type: "function", function: { name: "tide" } }, max_tokens: 120 });
  const final = await stream.finalChatCompletion();
  assert.equal(typeof JSON.parse(final.choices[0].message.tool_calls[0].function.arguments).port, "string");
});

test("openai: json_schema", async () => {
  for (let seed = 1; seed <= 3; seed++) {
    const r = await openai.chat.completions.create({ model, messages, seed, temperature: 1.5, max_tokens: 200, response_format: { type: "json_schema", json_schema: { name: "fox", strict: true, schema } } });
    const fox = JSON.parse(r.choices[0].message.content);
    assert.deepEqual(Object.keys(fox), ["name", "legs", "tags"]);
    assert.ok(Number.isInteger(fox.legs) && fox.tags.every((t) => ["red", "sly"].includes(t)));
  }
});

test("openai: errors carry status, type and param", async () => {
  await assert.rejects(openai.chat.completions.create({ model, messages, temperature: "hot" }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature" && e.type === "invalid_request_error");
  await assert.rejects(new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
});

test("openai: abort frees the place", async () => {
  const controller = new AbortController();
  const stream = await openai.chat.completions.create({ model, messages, max_tokens: 3000, stream: true }, { signal: controller.signal });
  let n = 0;
  try { for await (const _ of stream) if (++n === 5) controller.abort(); } catch { /* as asked */ }
  for (let i = 0; i < 100; i++) {
    const metrics = await (await fetch(`${url}/metrics`, { headers: { authorization: "Bearer sesame" } })).text();
    if (/^redlite_requests_running 0$/m.test(metrics)) return;
    await new Promise((r) => setTimeout(r, 20));
  }
  assert.fail("the request still runs");
});

test("openai: responses", async () => {
  const common = { model, instructions: "Be brief.", input: "Tell me of a fox.", max_output_tokens: 16, temperature: 0 };
  const whole = await openai.responses.create(common);
  assert.equal(whole.status, "incomplete");
  let text = "", final;
  for await (const event of await openai.responses.create({ ...common, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.incomplete") final = event.response;
  }
  assert.equal(text, whole.output_text);
  assert.equal(final.usage.output_tokens, 16);
});

test("openai: responses with a call, there and back", async () => {
  const input = [{ role: "user", content: "How high?" }], tools = [{ type: "function", ...tide, strict: false }];
  const first = await openai.responses.create({ model, input, tools, tool_choice: "required", parallel_tool_calls: false, max_output_tokens: 120 });
  const call = first.output.find((o) => o.type === "function_call");
  assert.equal(call.name, "tide");
  const second = await openai.responses.create({ model, input: [...input, call, { type: "function_call_output", call_id: call.call_id, output: "4.1" }], tools, max_output_tokens: 8 });
  assert.ok(second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1);
  const json = await openai.responses.create({ model, input, max_output_tokens: 200, text: { format: { type: "json_schema", name: "fox", schema } } });
  assert.equal(typeof JSON.parse(json.output_text).legs, "number");
});

test("anthropic: message, whole and streamed, are the same", async () => {
  const common = { model, system: "Be brief.", messages, max_tokens: 16, temperature: 0 };
  const whole = await anthropic.messages.create(common);
  assert.equal(whole.stop_reason, "max_tokens");
  const stream = anthropic.messages.stream(common);
  let text = "";
  stream.on("text", (t) => { text += t; });
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.deepEqual(final.content, whole.content);
  assert.equal(final.usage.output_tokens, 16);
});

test("anthropic: tools, there and back", async () => {
  const tools = [{ name: "tide", description: tide.description, input_schema: tide.parameters }];
  const stream = anthropic.messages.stream({ model, messages, tools, tool_choice: { type: "tool", name: "tide" }, max_tokens: 120 });
  const first = await stream.finalMessage();
  const call = first.content.find((b) => b.type === "tool_use");
  assert.equal(first.stop_reason, "tool_use");
  assert.equal(typeof call.input.port, "string");
  const second = await anthropic.messages.create({ model, tools, max_tokens: 8, messages: [...messages, { role: "assistant", content: first.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "4.1" }] }] });
  assert.ok(second.usage.cache_read_input_tokens > 0);
});

test("anthropic: stop sequences and errors", async () => {
  const whole = await anthropic.messages.create({ model, messages, max_tokens: 30, temperature: 0 });
  const stop = whole.content[0].text.slice(8, 12);
  const cut = await anthropic.messages.create({ model, messages, max_tokens: 30, temperature: 0, stop_sequences: [stop] });
  assert.equal(cut.stop_reason, "stop_sequence");
  assert.equal(cut.stop_sequence, stop);
  assert.ok(!cut.content.length || !cut.content[0].text.includes(stop));
  await assert.rejects(anthropic.messages.create({ model, messages: [], max_tokens: 3 }), Anthropic.BadRequestError);
});
