// The chat page in a headless Chromium (CHROMIUM or the one in PATH): a message is answered, stopped, answered again; the
// experts light up. SCREENSHOT=FILE keeps a picture.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import test from "node:test";
import { chromium } from "playwright-core";

const root = path.resolve(import.meta.dirname, "../.."), port = 20000 + (process.pid % 20000);
const executablePath = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

test("the chat page", { skip: !executablePath && "no Chromium is installed" }, async () => {
  const server = spawn(`${root}/build/redlite`, ["serve", "-p", port, "--no-request-log"], { stdio: "inherit" });
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  try {
    for (let i = 0; i < 100; i++) {
      try { if ((await fetch(`http://127.0.0.1:${port}/health`)).ok) break; } catch { await new Promise((r) => setTimeout(r, 100)); }
    }
    const page = await browser.newPage({ viewport: { width: 1200, height: 760 }, colorScheme: process.env.SCHEME ?? "dark" });
    const problems = [], foreign = [];
    page.on("pageerror", (e) => problems.push(e.message));
    page.on("request", (r) => { if (!/^(http:\/\/127\.0\.0\.1|data:)/.test(r.url())) foreign.push(r.url()); });
    await page.goto(`http://127.0.0.1:${port}/`);
    await page.waitForFunction(() => document.querySelector("#model").textContent.length > 3);
    await page.keyboard.press("Alt+s");
    await page.fill("#max_tokens", "60");
    await page.fill("#temperature", "0.7");
    await page.keyboard.press("Alt+s");
    await page.keyboard.press("Alt+e");
    await page.fill("#input", "Tell me a tale of a <b>fox</b>.");
    await page.keyboard.press("Enter");
    await page.waitForSelector(".turn.assistant small", { timeout: 60000 });
    assert.match(await page.textContent(".turn.assistant small"), /written at [\d.]+\/s/);
    assert.equal(await page.textContent(".turn.user div"), "Tell me a tale of a <b>fox</b>.");
    const first = await page.textContent(".turn.assistant div");
    assert.ok(first.length > 20);
    if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT });
    assert.match(await page.textContent("#expert-note"), /8 layers of 16 experts/);
    const lit = await page.evaluate(() => {
      const c = document.querySelector("#grid");
      return [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data].filter((v, i) => i % 4 === 0 && v > 60).length;
    });
    assert.ok(lit > 8, `${lit} experts are lit`);
    await page.click("#again");
    await page.waitForSelector("#stop:visible");
    await page.waitForFunction(() => document.querySelector(".turn.assistant div")?.textContent.length > 5);
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => document.querySelector("#status").textContent === "stopped");
    assert.equal(await page.locator(".turn.assistant").count(), 1);
    await page.keyboard.press("Alt+n");
    assert.equal(await page.locator(".turn").count(), 0);
    assert.deepEqual(problems, []);
    assert.deepEqual(foreign, []);
  } finally {
    await browser.close();
    server.kill("SIGTERM");
  }
});
