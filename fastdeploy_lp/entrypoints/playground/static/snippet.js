// A request as source text of a program that sends it.

// Fields with an argument in OpenAI's Python client; `extra_body` passes the others.
const ARGUMENTS = new Set([
  ...["messages", "temperature", "top_p", "max_tokens", "n", "seed", "stop", "stream", "presence_penalty"],
  ...["frequency_penalty", "logit_bias"],
]);
const KEY = "FASTDEPLOY_LP_API_KEY";

/** Returns a shell command; it reads the key from the environment, to keep it out of the shell's history. */
export function asCurl(url, body, needsKey) {
  const lines = [`curl ${url}/v1/chat/completions`, `-H 'Content-Type: application/json'`];
  if (needsKey) lines.push(`-H "Authorization: Bearer $${KEY}"`);
  lines.push(`-d '${JSON.stringify(body, null, 2).replaceAll("'", `'\\''`)}'`);
  return lines.join(" \\\n  ");
}

/** Returns a program for OpenAI's Python client. */
export function asPython(url, body, needsKey) {
  const key = needsKey ? `os.environ["${KEY}"]` : `"EMPTY_API_KEY"`;
  const own = Object.entries(body).filter(([name]) => ARGUMENTS.has(name));
  const extra = Object.entries(body).filter(([name]) => !ARGUMENTS.has(name));
  const lines = own.map(([name, value]) => `    ${name}=${literal(value, 1)},`);
  if (extra.length) lines.push(`    extra_body=${literal(Object.fromEntries(extra), 1)},`);
  return [
    ...(needsKey ? ["import os", ""] : []),
    "import openai",
    "",
    `client = openai.Client(base_url=${literal(`${url}/v1`, 0)}, api_key=${key})`,
    "response = client.chat.completions.create(",
    `    model="default",`,
    ...lines,
    ")",
    "print(response.choices[0].message.content)",
    "",
  ].join("\n");
}

/** Returns a JSON value as a Python literal. */
function literal(value, depth) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const inner = isList
    ? value.map((each) => literal(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, depth + 1)}`);
  const [open, close] = isList ? "[]" : "{}";
  const oneLine = `${open}${inner.join(", ")}${close}`;
  if (oneLine.length + 4 * depth < 90 && !oneLine.includes("\n")) return oneLine;
  const pad = "    ".repeat(depth + 1);
  return `${open}\n${inner.map((each) => `${pad}${each},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
