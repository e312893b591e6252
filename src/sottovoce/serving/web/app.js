// The page: what its controls do, and what is shown while words come.

import { Connection } from "./connection.js";
import { asJson, asSubRip, asText } from "./exports.js";
import { Source, microphones } from "./sources.js";
import { Timeline } from "./timeline.js";
import { Transcript, clock } from "./transcript.js";

const WORDS_OF_LATENCY = 20;
const SETTINGS = ["languages", "switching", "translate_to", "device", "model", "terms", "speakers", "unstable"];
const TELLS = {
  idle: "ready",
  connecting: "connecting…",
  live: "listening",
  reconnecting: "connection lost: trying again, nothing is lost",
  finishing: "writing the last words…",
  ended: "finished",
  refused: "refused",
};

const ASKS_FOR_KEY = "This server asks for an API key: write it into the settings, and start again.";

const $ = (id) => document.getElementById(id);
const transcript = new Transcript($("log"), $("now"));
const timeline = new Timeline($("timeline"), transcript);
const latencies = [];
let source = null;
let connection = null;
let early = []; // sound that came before there was a connection
let wakeLock = null;
let model = "";
let models = []; // that may be asked for, the default one first
let base = 0; // seconds of the recordings before this one, which stay on the page

// Starting and stopping

async function start() {
  const kind = document.querySelector('input[name="source"]:checked').value;
  if (kind === "file" && !$("file").files.length) {
    $("file").click();
    return;
  }
  hideNotice();
  setRunning(true);
  base = timeline.now;
  early = [];
  try {
    source = await Source.open(kind, {
      deviceId: $("device").value,
      file: $("file").files[0],
      player: $("player"),
      onMessage: hear,
      onEnded: (error) => (error ? fail(error) : stop()),
    });
  } catch (error) {
    fail(error);
    return;
  }
  connect();
  listMicrophones();
  keepAwake();
}

function connect() {
  const parameters = { unstable: $("unstable").checked, switching: $("switching").value };
  if ($("speakers").checked) parameters.speakers = "auto";
  for (const name of ["languages", "translate_to", "model", "terms"]) if ($(name).value.trim()) parameters[name] = $(name).value.trim();
  connection = new Connection(parameters, $("key").value.trim());
  early.forEach((pcm) => connection.push(pcm));
  connection.addEventListener("message", ({ detail }) => take(detail));
  connection.addEventListener("state", ({ detail }) => onState(detail));
  connection.addEventListener("lost", () => {
    transcript.close(); // its words stay; the rest of the audio is sent again
    timeline.endSpeech(base + (connection?.understood ?? 0) / 16000);
  });
}

async function stop() {
  const finishing = source;
  source = null;
  await finishing?.finish();
  if (connection) connection.finish();
  else setRunning(false);
}

function fail(error) {
  const told = { NotAllowedError: "The browser was not allowed to listen.", NotFoundError: "No microphone was found." };
  notice(told[error.name] ?? error.message);
  source?.close();
  source = null;
  connection?.abandon();
  setRunning(false);
}

function onState({ state, reason, code }) {
  show(state);
  if (state === "refused") {
    source?.close();
    source = null;
    if (code === "invalid_api_key") {
      $("settings").open = true;
      $("key").focus();
    }
    notice(code === "invalid_api_key" ? ASKS_FOR_KEY : reason || "The server refused this.");
  }
  if (state === "reconnecting" && reason) notice(reason);
  if (state === "live") hideNotice();
  if (state === "ended" || state === "refused") {
    transcript.close();
    connection = null;
    setRunning(false);
  }
}

// What comes in

function hear({ pcm, peak }, { analyser }) {
  if (pcm.length) {
    timeline.push(analyser);
    if (connection) connection.push(pcm);
    else early.push(pcm);
  }
  showLevel(peak);
  $("heard").textContent = clock(timeline.now);
}

function take({ message, offset }) {
  if (message.type === "ready") model = message.model;
  if (message.type === "error" && connection?.state === "live") notice(message.error.message);
  transcript.take(message, base + offset);
  timeline.take(message, base + offset);
  if (message.type === "partial") noteLatency(message.words, offset);
}

function noteLatency(words, offset) {
  if (connection.state !== "live") return; // after a break words come late, and that is no latency
  for (const { end } of words) latencies.push(connection.seconds - end - offset);
  latencies.splice(0, latencies.length - WORDS_OF_LATENCY);
  const middle = [...latencies].sort((a, b) => a - b)[Math.floor(latencies.length / 2)];
  $("latency").textContent = `${Math.max(0, middle).toFixed(1)} s`;
}

// What is shown

function show(state) {
  $("status").dataset.state = state;
  $("status-text").textContent = TELLS[state];
}

function setRunning(running) {
  $("toggle").setAttribute("aria-pressed", String(running));
  $("toggle-text").textContent = running ? "Stop" : "Start";
  document.querySelectorAll('input[name="source"]').forEach((input) => (input.disabled = running));
  if (running) show("connecting");
  else {
    if (!["refused", "ended"].includes($("status").dataset.state)) show("idle");
    showLevel(0);
    wakeLock?.release();
    wakeLock = null;
  }
  offerActions();
}

let announcedAt = 0;
function showLevel(peak) {
  const level = peak > 0 ? Math.max(0, 1 + Math.log10(peak) / 2.5) : 0; // 50 dB
  $("level").style.transform = `scaleX(${level})`;
  $("meter").classList.toggle("clipped", peak > 0.99);
  if (performance.now() - announcedAt > 500) {
    announcedAt = performance.now();
    $("meter").setAttribute("aria-valuenow", String(Math.round(100 * level)));
  }
}

function offerActions() {
  const has = transcript.words > 0;
  for (const button of document.querySelectorAll("#copy, .save")) button.disabled = !has;
  $("clear").disabled = !has || connection !== null;
  $("hint").hidden = has;
}

let isFollowing = true;
function onGrown() {
  timeline.dirty = true;
  $("words").textContent = String(transcript.words);
  offerActions();
  if (isFollowing) $("captions").scrollTop = $("captions").scrollHeight;
}

function onScroll() {
  const { scrollTop, scrollHeight, clientHeight } = $("captions");
  isFollowing = scrollHeight - scrollTop - clientHeight < 60;
  $("follow").hidden = isFollowing;
}

function showLanguages() {
  const items = transcript.languages.map((language) => {
    const item = document.createElement("li");
    const colour = document.createElement("i");
    const name = document.createElement("span");
    item.className = `colour-${transcript.colour(language)}`;
    name.className = "name";
    name.textContent = transcript.name(language);
    item.append(colour, name);
    return item;
  });
  $("legend").replaceChildren(...items);
}

function showSpeakers() {
  const { speakers } = transcript;
  timeline.makeRoom(speakers.length);
  const items = speakers.map((speaker) => {
    const item = document.createElement("li");
    const colour = document.createElement("i");
    const name = document.createElement("span");
    item.className = `voice-${transcript.voice(speaker)}`;
    name.className = "name";
    name.textContent = `Speaker ${speaker}`;
    item.append(colour, name);
    return item;
  });
  $("voices").replaceChildren(...items);
}

function notice(text) {
  $("notice-text").textContent = text;
  $("notice").hidden = false;
}

function hideNotice() {
  $("notice").hidden = true;
}

// Copying and saving

function allUtterances() {
  const { current, utterances } = transcript;
  if (!current?.words.length) return utterances;
  const { words } = current;
  const { start, language } = words[0];
  return [...utterances, { start, end: words.at(-1).end, language, words }];
}

async function copy() {
  await navigator.clipboard.writeText(asText(allUtterances()));
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

function save(format) {
  const write = { txt: asText, srt: asSubRip, json: (found) => asJson(found, { model, duration: timeline.now }) };
  const types = { txt: "text/plain", srt: "application/x-subrip", json: "application/json" };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([write[format](allUtterances())], { type: types[format] }));
  link.download = `captions-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function clear() {
  transcript.clear();
  timeline.clear();
  latencies.length = 0;
  $("latency").textContent = "–";
  $("heard").textContent = "0:00";
}

// Settings and devices

function restoreSettings() {
  const asked = new URLSearchParams(location.search);
  for (const name of SETTINGS) {
    const value = asked.get(name) ?? localStorage.getItem(`sottovoce.${name}`);
    if (value === null) continue;
    if ($(name).type === "checkbox") $(name).checked = value === "true";
    else setValue($(name), value);
  }
  $("key").value = sessionStorage.getItem("sottovoce.key") ?? "";
}

// A value of a list whose choices may be known only later.
function setValue(field, value) {
  if (field instanceof HTMLSelectElement && ![...field.options].some((option) => option.value === value)) {
    field.add(new Option(value, value));
  }
  field.value = value;
}

function keepSettings() {
  for (const name of SETTINGS) {
    const field = $(name);
    localStorage.setItem(`sottovoce.${name}`, field.type === "checkbox" ? String(field.checked) : field.value);
  }
  sessionStorage.setItem("sottovoce.key", $("key").value);
}

async function listMicrophones() {
  const chosen = $("device").value;
  const found = await microphones();
  const options = found.map(({ deviceId, label }, i) => new Option(label || `microphone ${i + 1}`, deviceId));
  $("device").replaceChildren(new Option("default", ""), ...options);
  $("device").value = found.some(({ deviceId }) => deviceId === chosen) ? chosen : "";
}

async function listModels() {
  const key = $("key").value.trim();
  const answer = await fetch("/v1/models", { headers: key ? { authorization: `Bearer ${key}` } : {} });
  if (!answer.ok) return;
  const chosen = $("model").value;
  const { data } = await answer.json();
  models = data.filter(({ id, model: meant }) => id === meant);
  $("model").replaceChildren(new Option("default", ""), ...models.map(({ id }) => new Option(id, id)));
  setValue($("model"), chosen);
  listTargets();
}

// The languages that the chosen model's words can be translated into, by their names.
function listTargets() {
  const chosen = $("translate_to").value;
  const { translates_to: codes } = models.find(({ id }) => id === $("model").value) ?? models[0];
  const targets = codes.map((code) => new Option(transcript.name(code), code));
  targets.sort((a, b) => a.text.localeCompare(b.text));
  $("translate_to").replaceChildren(new Option("nothing", ""), ...targets);
  $("translate_to").value = codes.includes(chosen) ? chosen : "";
}

async function keepAwake() {
  try {
    wakeLock = await navigator.wakeLock?.request("screen");
  } catch {
    wakeLock = null; // a battery that is low comes first
  }
}

// Wiring

$("toggle").addEventListener("click", () => {
  if ($("toggle").getAttribute("aria-pressed") !== "true") start();
  else if (connection && connection.state === "finishing") connection.abandon();
  else stop();
});
$("file").addEventListener("change", () => $("file").files.length && start());
document.querySelectorAll('input[name="source"]').forEach((input) =>
  input.addEventListener("change", () => ($("file").value = "")),
);
$("copy").addEventListener("click", copy);
$("clear").addEventListener("click", clear);
document.querySelectorAll(".save").forEach((button) => button.addEventListener("click", () => save(button.dataset.format)));
$("notice-close").addEventListener("click", hideNotice);
$("settings").addEventListener("change", keepSettings);
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", listModels);
$("model").addEventListener("change", listTargets);
$("captions").addEventListener("scroll", onScroll);
$("follow").addEventListener("click", () => {
  isFollowing = true;
  onGrown();
});
transcript.addEventListener("grown", onGrown);
transcript.addEventListener("language", showLanguages);
transcript.addEventListener("speaker", showSpeakers);
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, button, summary, audio");
  if (event.code !== "Space" || isTyping || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  $("toggle").click();
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && source) keepAwake();
});
navigator.mediaDevices?.addEventListener("devicechange", listMicrophones);
window.addEventListener("beforeunload", (event) => {
  if (source) event.preventDefault();
});
restoreSettings();
listMicrophones();
listModels();
