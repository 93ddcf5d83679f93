// Answers questions as the static page does: node page_answers.mjs SITE [resumed] < questions.json > answers.json
// A question is [name, query, text]; an answer [status, text].

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";

const site = resolve(process.argv[2], "static");
const { loadPyodide } = await import(pathToFileURL(`${site}/python/pyodide.mjs`));

async function fromNothing() {
  const python = await loadPyodide({ indexURL: `${site}/python/` });
  python.unpackArchive(new Uint8Array(readFileSync(`${site}/kvcalc.zip`)), "zip", { extractDir: "/kvcalc" });
  python.runPython('import sys; sys.path.insert(0, "/kvcalc"); from kvcalc.explore.here import answered');
  return python;
}

async function resumed() {
  const script = readFileSync(`${site}/files.js`, "utf8");
  const { mountTexts } = await import(`data:text/javascript,${encodeURIComponent(script)}`);
  const memory = gunzipSync(readFileSync(`${site}/snapshot.bin`));
  const files = JSON.parse(gunzipSync(readFileSync(`${site}/kvcalc.bin`)));
  return loadPyodide({ indexURL: `${site}/python/`, _loadSnapshot: memory, fsInit: (FS) => mountTexts(FS, files, "/kvcalc") });
}

const python = await (process.argv[3] === "resumed" ? resumed() : fromNothing());
const answered = python.globals.get("answered");
const questions = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(questions.map(([name, query, text = ""]) => answered(name, query, text).toJs())));
