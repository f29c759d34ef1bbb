// The real openai package for Node at a real server: does what standard input lists, and prints what it read, as JSON.
// Nothing is judged here; test_node_client.py compares with what the Python client reads.

import OpenAI from "openai";
import { readFileSync } from "node:fs";

// As many as the server takes at once, whatever number of choices they ask for.
const TOGETHER = 4;
const plan = JSON.parse(readFileSync(0, "utf8"));
const options = { apiKey: plan.key, maxRetries: 0 };
const client = new OpenAI({ ...options, baseURL: `${plan.url}/v1` });
// For routes that do not stand below /v1.
const root = new OpenAI({ ...options, baseURL: plan.url });

const CREATE = {
  "/v1/chat/completions": (body, given) => client.chat.completions.create(body, given),
  "/v1/completions": (body, given) => client.completions.create(body, given),
  "/v1/embeddings": (body, given) => client.embeddings.create(body, given),
};

async function gathered(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

async function read({ route, body }) {
  const answer = await CREATE[route](body);
  return body.stream ? gathered(answer) : [answer];
}

async function answers() {
  const all = [];
  for (let start = 0; start < plan.bodies.length; start += TOGETHER) {
    all.push(...(await Promise.all(plan.bodies.slice(start, start + TOGETHER).map(read))));
  }
  return all;
}

async function calls() {
  const read = [];
  for (const { method, path, body } of plan.calls) {
    const request = method === "GET" ? root.get(path) : root.post(path, { body });
    const response = await request.asResponse();
    const isJson = response.headers.get("content-type") === "application/json";
    read.push({ status: response.status, content: isJson ? await response.json() : await response.text() });
  }
  return read;
}

// What an error of the package says of itself; its class is looked up by what the package exports.
async function raised(promise) {
  try {
    await promise;
  } catch (error) {
    const classes = Object.keys(OpenAI).filter((name) => typeof OpenAI[name] === "function" && OpenAI[name] === error.constructor);
    return {
      classes,
      status: error.status ?? null,
      code: error.code ?? null,
      param: error.param ?? null,
      requestId: error.requestID ?? null,
      message: error.message,
    };
  }
  return null;
}

async function failures() {
  const read = [];
  for (const { path, body, api_key } of plan.failures) {
    read.push(await raised(root.withOptions({ apiKey: api_key }).post(path, { body })));
    await root.post("/v1/logits_processors/RaisesOnBoom/reset").asResponse();
  }
  return read;
}

async function nothingRuns() {
  let load;
  do {
    load = await root.get("/load");
  } while (load.server_load !== 0);
}

async function numAborted() {
  const text = await (await root.get("/metrics").asResponse()).text();
  return Number(/^fastdeploy_lp:request_aborted_total (\S+)$/m.exec(text)[1]);
}

async function endless() {
  const body = { ...plan.endless, n: 8 };
  const before = await numAborted();
  const timedOut = await raised(client.chat.completions.create(body, { timeout: 200 }));
  await nothingRuns();
  const afterTimeout = await numAborted();

  const controller = new AbortController();
  const asked = raised(client.chat.completions.create(body, { signal: controller.signal }));
  while ((await root.get("/load")).running === 0);
  controller.abort();
  const left = await asked;
  await nothingRuns();
  const afterAbort = await numAborted();

  const stream = await client.chat.completions.create({ ...body, n: 16, stream: true });
  let refused = null;
  for await (const _ of stream) {
    refused = await raised(client.chat.completions.create(plan.endless));
    break; // leaving the loop closes the stream
  }
  await nothingRuns();
  const aborted = [afterTimeout - before, afterAbort - afterTimeout, (await numAborted()) - afterAbort];
  return { timedOut, left, refused, aborted };
}

async function abortedByName() {
  const stream = await client.chat.completions.create({ ...plan.endless, stream: true, request_id: "to-be-ended" });
  let told = null;
  let last = null;
  for await (const chunk of stream) {
    told ??= await root.post("/v1/abort_requests", { body: { req_ids: ["to-be-ended"] } });
    last = chunk;
  }
  return { told, reason: last.choices[0].finish_reason };
}

async function brokenStream() {
  const stream = await client.chat.completions.create({ ...plan.endless, ...plan.boom, stream: true });
  const error = await raised(gathered(stream));
  await root.post("/v1/logits_processors/RaisesOnBoom/reset").asResponse();
  return error;
}

async function helpers() {
  const headers = { "X-Request-Id": "node-1" };
  const { data, response, request_id } = await client.chat.completions.create(plan.plain, { headers }).withResponse();
  const listed = [];
  for await (const model of client.models.list()) listed.push(model.id);
  const retrieved = (await client.models.retrieve(listed[0])).id;
  const missing = await raised(client.models.retrieve("gpt"));
  const nobody = new OpenAI({ ...options, baseURL: `${plan.nowhere}/v1` });
  const unreachable = await raised(nobody.models.list());
  const final = await client.chat.completions.stream(plan.scripted).finalChatCompletion();
  return {
    text: data.choices[0].message.content,
    requestIds: [request_id, data._request_id, response.headers.get("x-request-id")],
    listed,
    retrieved,
    missing,
    unreachable,
    final,
  };
}

async function responses() {
  const body = { model: "default", input: "Go", ...plan.said };
  const plain = await client.responses.create(body);
  const stream = client.responses.stream({ ...body, previous_response_id: plain.id });
  const events = await gathered(stream);
  const final = await stream.finalResponse();
  const stored = await client.responses.retrieve(plain.id);
  const items = await gathered(client.responses.inputItems.list(final.id, { limit: 2, order: "asc" }));
  await client.responses.delete(plain.id);
  return {
    texts: [plain.output_text, final.output_text, stored.output_text],
    events: events.map((event) => event.type),
    items: items.map((item) => item.type),
    gone: await raised(client.responses.retrieve(plain.id)),
  };
}

const results = {
  answers: await answers(),
  calls: await calls(),
  failures: await failures(),
  endless: await endless(),
  abortedByName: await abortedByName(),
  brokenStream: await brokenStream(),
  helpers: await helpers(),
  responses: await responses(),
};
process.stdout.write(JSON.stringify(results));
