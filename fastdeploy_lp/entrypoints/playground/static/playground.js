// The playground: creates and connects its panels.

import { announce } from "./announcer.js";
import { ChainPanel } from "./chain_panel.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { Heartbeat } from "./heartbeat.js";
import { KeyField } from "./key_field.js";
import { PresetPanel } from "./preset_panel.js";
import { SamplingPanel } from "./sampling_panel.js";
import { Server } from "./server.js";
import { SnippetDialog } from "./snippet_dialog.js";
import { explainTerms } from "./term.js";
import { TokenInspector } from "./token_inspector.js";
import { UploadZone } from "./upload_zone.js";

const byId = (id) => document.getElementById(id);
const server = new Server();
const chain = new ChainPanel(byId("chain"), server, async (card) => {
  try {
    await server.deleteUpload(card.name);
    announce(`${card.name} is deleted`);
    await connect();
  } catch (error) {
    card.showError([], error.message);
  }
});
const uploads = new UploadZone(byId("chain"), server, async (name) => {
  await connect();
  chain.use(name);
});
const sampling = new SamplingPanel(byId("sampling"));
const system = byId("system");
// The first message removes it from the page.
const banStep = byId("ban-step");

function showStatus(text, kind) {
  byId("status").textContent = text;
  byId("status").dataset.kind = kind;
}

/** Returns a request's body without messages; for invalid settings, shows the errors and returns null. */
function request() {
  chain.clearErrors();
  sampling.clearErrors();
  const fine = [chain.check(), sampling.check()].every(Boolean);
  if (!fine) {
    const first = document.querySelector('[aria-invalid="true"]') ?? document.querySelector(".error:not([hidden])");
    const panel = first?.closest("details.panel");
    if (panel) panel.open = true;
    first?.focus();
    first?.scrollIntoView({ block: "center" });
    announce("Something in the settings is wrong");
    return null;
  }
  return { ...sampling.body, logits_processors: chain.entries };
}

/** Shows a refusal at its field; false if there is none. */
function refused(error) {
  if (error.status === 401) {
    key.ask();
    return true;
  }
  const [first, ...rest] = (error.param ?? "").split(".");
  const message = error.message.replace(`${error.param}: `, "");
  const shown = first === "logits_processors" ? chain.showError(rest, message) : sampling.showError([first, ...rest], message);
  if (shown) announce(message);
  for (const panel of document.querySelectorAll("details.panel")) {
    if (panel.querySelector(".error:not([hidden])")) panel.open = true;
  }
  return shown;
}

const inspector = new TokenInspector({
  dock: byId("dock"),
  bias: null,
  onBiased: () => byId("again").focus(),
});
const conversation = new Conversation({
  server,
  inspector,
  request,
  refused,
  compares: () => sampling.compare.checked,
  active: () => chain.active,
  system: () => system.value.trim(),
});
const key = new KeyField(server, connect);
const connection = new Connection(showStatus, key);
const heartbeat = new Heartbeat(() => server.health(), connect);
server.addEventListener("unreachable", () => heartbeat.beat());
new SnippetDialog(server, () => {
  const body = request();
  return body && conversation.nextBody(body);
});
const presets = new PresetPanel(
  byId("presets"),
  () => ({ system: system.value, sampling: sampling.settings, chain: chain.settings }),
  (settings) => {
    system.value = settings.system ?? "";
    sampling.settings = settings.sampling ?? {};
    chain.settings = settings.chain ?? [];
  },
);

let shown;

/** Waits for the server, shows what it declares, and watches it until it is gone. */
async function connect() {
  heartbeat.stop();
  showStatus("connecting …", "waiting");
  const found = await connection.open(load);
  if (!found) return;
  showStatus(`${found.model.id} is ready`, "good");
  heartbeat.start();
  const declared = declarationOf(found);
  // The same declarations again: the forms stay as they are, with the focus.
  if (declared !== shown) show(found);
  shown = declared;
}

async function load() {
  await server.health();
  const { declared, takesUploads } = await server.processors();
  return { processors: declared, takesUploads, model: await server.model(), schema: await server.schema() };
}

/** Returns the part of a server's answers that the page shows, without counters and times. */
function declarationOf({ processors, takesUploads, model, schema }) {
  const cards = processors.map(({ counters, shadow, last_error, ...card }) => card);
  return JSON.stringify([model.id, cards, takesUploads, schema]);
}

function show(found) {
  sampling.show(found.schema.components.schemas.ChatCompletionRequest, found.schema);
  chain.show(found.processors);
  uploads.shown = found.takesUploads;
  presets.show(found.processors);
  banStep.hidden = !chain.canBias;
  inspector.bias = chain.canBias
    ? (token, value) => {
        const name = chain.bias(token, value);
        announce(`${name} gives token ${token} a bias of ${value}. Run again to see what it does.`);
      }
    : null;
}

for (const button of document.querySelectorAll("[data-question]")) {
  button.addEventListener("click", () => conversation.ask(button.dataset.question));
}
// Wide screens have room for the panel that is folded on a phone.
if (matchMedia("(min-width: 60rem)").matches) byId("sampling-panel").open = true;
explainTerms();
connect();
