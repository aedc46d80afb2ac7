#!/usr/bin/env bash
# The official clients (npm: openai, @anthropic-ai/sdk) and a headless Chromium against build/redlite. What is not there is
# skipped by name.
set -u
cd "$(dirname "$0")/../tests/server"
command -v node >/dev/null && command -v npm >/dev/null || { echo "skipped: tests of the server with official clients (node and npm are not installed)"; exit 0; }
if ! npm ci --no-progress >/dev/null 2>&1; then
    echo "skipped: tests of the server with official clients (the npm registry cannot be reached)"
    exit 0
fi
node --test clients.mjs page.mjs
