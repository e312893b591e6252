// The page: what its controls do, and what is shown while words come.

import { Chips } from "./chips.js";
import { Connection } from "./connection.js";
import { copy, placeMenu, save } from "./downloads.js";
import { Editor } from "./editor.js";
import { Finder } from "./finder.js";
import { Invitations } from "./invitations.js";
import { Lateness } from "./lateness.js";
import { showDoubts, showLanguages, showSpeakers } from "./legends.js";
import { Library } from "./library.js";
import { Playback } from "./playback.js";
import { Recording } from "./recording.js";
import { clock } from "./rendering.js";
import { MicrophoneTest } from "./microphone.js";
import { keepSettings, listMicrophones, listModels, listTargets, liveParameters, microphoneName, resize, restoreSettings } from "./settings.js";
import { LocalSharing, Sharing } from "./sharing.js";
import { levelOf, Source } from "./sources.js";
import { SpeakerMenu } from "./speakers.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";
import { Uploading } from "./uploading.js";

const TELLS = {
  idle: "ready",
  connecting: "connecting…",
  live: "live",
  reconnecting: "connection lost: trying again, nothing is lost",
  full: "the server is full: trying again",
  finishing: "writing the last words…",
  reading: "reading the recording",
  ended: "finished",
  refused: "refused",
};

const ASKS_FOR_KEY = "This server asks for an API key: write it into the settings, and start again.";
const NO_SOUND = "The text goes on; the sound of what is said from here on is not kept.";
const NO_SPEECH = "No speech was found.";
const SAMPLE = "/static/sample.mp3"; // English and German, examples/speech/README.md has its sources
const SOURCES = { microphone: "the microphone", tab: "the sound of a tab", both: "the microphone and the sound of a tab", file: "a file that is played here", upload: "a file" };

const $ = (id) => document.getElementById(id);
const transcript = new Transcript($("log"), $("now"));
const timeline = new Timeline($("timeline"), transcript);
const editor = new Editor(transcript);
const finder = new Finder(editor);
const speakerMenu = new SpeakerMenu(transcript, editor);
const recording = new Recording();
const playback = new Playback($("playback"), transcript);
const lateness = new Lateness();
const local = new LocalSharing(transcript);
const sharing = new Sharing(transcript);
const key = () => $("key").value.trim();
const invitations = new Invitations(sharing, transcript, { key, onError: refused });
const name = (language) => transcript.name(language);
const revision = () => transcript.revision;
const library = new Library({ current, revision, language: name, onOpen: openSession, onRename: call, onForget, onError: notice });
const microphoneTest = new MicrophoneTest({ onNamed: nameMicrophones, onError: fail });
const chips = new Chips(transcript, { onChange: onLanguages });
const uploading = new Uploading(transcript, { onStart: onUpload, onEnd: onUploaded });
let source = null;
let connection = null;
let early = []; // sound that came before there was a connection
let wakeLock = null;
let model = "";
let base = 0; // seconds of the recordings before this one, which stay on the page
let title = "";
let isSample = false; // what stands on the page is the sample: nothing that anybody keeps

const kind = () => document.querySelector('input[name="source"]:checked').value;
const isRunning = () => $("toggle").getAttribute("aria-pressed") === "true";
const now = () => Math.max(timeline.now, transcript.utterances.at(-1)?.end ?? 0);

// Starting and stopping

function start() {
  const isFile = ["file", "upload"].includes(kind());
  const file = $("file").files[0];
  if (isFile && !file) {
    $("file").click();
    return;
  }
  $("file").value = "";
  if (kind() === "upload") upload(file);
  else open(kind(), file);
}

// Listen to a source. file: the recording that is played, if one is.
async function open(kind, file) {
  hideNotice();
  microphoneTest.end();
  playback.close();
  if (isSample) clear();
  if (!transcript.words) editor.history.clear(); // what was cleared stays in the library
  setRunning(true);
  timeline.skipTo(now());
  base = timeline.now;
  recording.goOn(base);
  early = [];
  try {
    source = await Source.open(kind, {
      deviceId: $("device").value,
      file,
      player: $("player"),
      onMessage: hear,
      onEnded: (error) => (error ? fail(error) : stop()),
    });
  } catch (error) {
    fail(error);
    return;
  }
  connect(kind);
  await nameMicrophones();
  keepAwake();
}

async function playSample() {
  try {
    const answer = await fetch(SAMPLE);
    if (!answer.ok) throw new Error(`The sample was not sent (${answer.status}).`);
    const file = await answer.blob();
    if (isRunning()) return;
    clear();
    const opening = open("file", file);
    isSample = true;
    await opening;
  } catch ({ message }) {
    notice(message);
  }
}

async function nameMicrophones() {
  await listMicrophones();
  offerActions();
}

function connect(kind) {
  transcript.joined = {}; // another session has voices of its own
  connection = new Connection(liveParameters(kind), key());
  early.forEach((pcm) => connection.push(pcm));
  connection.addEventListener("message", ({ detail }) => take(detail));
  connection.addEventListener("state", ({ detail }) => onState(detail));
  connection.addEventListener("lost", () => {
    transcript.closeAll(); // its words stay; the rest of the audio is sent again
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
    refused({ code, message: reason });
  }
  if (state === "reconnecting" && reason) notice(reason);
  if (code === "rate_limit_exceeded") $("status-text").textContent = TELLS.full;
  if (state === "live") hideNotice();
  if (state === "live" && !recording.isOn) notice(NO_SOUND);
  if (state === "ended" || state === "refused") {
    transcript.closeAll();
    connection = null;
    setRunning(false);
    if (recording.blob) playback.open(recording.blob);
    if (state === "ended" && !transcript.words) notice(NO_SPEECH);
    library.keep(true);
  }
}

function onLegend() {
  chips.show();
  showLanguages(transcript, chips);
}

// Other languages are spoken from now on.
function onLanguages() {
  keepSettings();
  onLegend();
  if (connection && source) connection.configure({ languages: chips.codes });
}

function refused({ code, message }) {
  if (code === "invalid_api_key") {
    if ($("share").open) $("share").close();
    showSettings(true);
    $("key").focus();
  }
  notice(code === "invalid_api_key" ? ASKS_FOR_KEY : message || "The server refused this.");
}

// What comes in

function hear({ pcm, peak }, { analyser, channels }) {
  if (pcm.length) {
    timeline.push(analyser);
    recording.push(pcm, channels);
    if (connection) connection.push(pcm);
    else early.push(pcm);
  }
  showLevel(peak);
  $("audio").textContent = clock(timeline.now);
}

function take({ message, offset }) {
  if (message.type === "ready") model = message.model;
  if (message.type === "error" && connection?.state === "live") notice(message.error.message);
  transcript.take(message, base + offset);
  timeline.take(message, base + offset);
  lateness.take(message, offset, connection);
}

// A recording that is read as a whole

function upload(file) {
  if (!mayReplace()) return;
  hideNotice();
  microphoneTest.end();
  clear();
  call(file.name.replace(/\.\w+$/, ""));
  recording.file = file;
  uploading.start(file, key());
}

function onUpload() {
  setRunning(true);
  show("reading");
}

function onUploaded(fault) {
  show(fault ? "idle" : "ended");
  setRunning(false);
  if (fault) {
    if (!transcript.words) call(""); // of a recording that nothing came from
    // The field of the form is not on this page.
    refused({ ...fault, message: fault.message?.replace(/ \(samples without a header need [^)]*\)/, "") });
  } else if (!transcript.words) notice(NO_SPEECH);
  $("audio").textContent = clock(now());
  if (transcript.words) playback.open(recording.file);
  library.keep(true);
}

// Sessions that were kept

function current() {
  if (isSample || !(transcript.words || library.kept)) return null;
  return { title: titleOf(), name: title, model, duration: now(), transcript, sound: connection ? null : recording.blob };
}

// Its name, or its first words, which somebody may have deleted.
function titleOf() {
  const words = transcript.all.flatMap((utterance) => utterance.words).slice(0, 8);
  return title || words.map(({ word }) => word).join("").trim() || "No words";
}

function openSession(session, sound) {
  if (isRunning()) return false;
  clear();
  call(session.name ?? session.title);
  model = session.model;
  transcript.called = { ...session.called };
  for (const utterance of session.utterances) transcript.add(utterance);
  transcript.renamed = transcript.revision;
  transcript.dispatchEvent(new Event("speaker"));
  editor.history.clear();
  recording.file = sound;
  if (sound) playback.open(sound);
  $("audio").textContent = clock(session.duration);
  $("captions").scrollTop = 0;
  return true;
}

function onForget() {
  if (isRunning()) return; // what comes is a session again
  clear();
  show("idle");
}

// Keep what stands on the page before something else does; whether that may be.
function mayReplace() {
  library.keep();
  return !transcript.words || !library.isFailing || confirm("This browser keeps no sessions: replace the text on this page?");
}

// Begin anew; undone by opening the session again.
function clearPage() {
  if (!mayReplace()) return;
  const { kept } = library;
  clear();
  show("idle");
  if (kept) editor.history.remember({ undo: () => library.tried(() => library.reopen(kept)), redo: clear });
}

// What is shown

// Give what stands on the page a name: that of its recording, or of the session that was opened.
function call(name) {
  title = name;
  $("title").textContent = name;
  $("title").hidden = !name;
  document.title = name ? `${name} – sottovoce` : "sottovoce live";
}

function show(state) {
  $("status").dataset.state = state;
  $("status-text").textContent = TELLS[state];
}

function setRunning(running) {
  transcript.stopped = running ? null : Date.now();
  $("toggle").setAttribute("aria-pressed", String(running));
  document.querySelectorAll('input[name="source"]').forEach((input) => (input.disabled = running));
  if (running && !uploading.isRunning) show("connecting");
  if (!running) {
    if (!["refused", "ended"].includes($("status").dataset.state)) show("idle");
    showLevel(0);
    lateness.end();
    wakeLock?.release();
    wakeLock = null;
  }
  offerActions();
  local.send();
  sharing.send();
}

let announcedAt = 0;
function showLevel(peak) {
  const level = levelOf(peak);
  $("level").style.transform = `scaleX(${level})`;
  $("meter").classList.toggle("clipped", peak > 0.99);
  if (performance.now() - announcedAt > 500) {
    announcedAt = performance.now();
    $("meter").setAttribute("aria-valuenow", String(Math.round(100 * level)));
  }
}

function offerActions() {
  const has = transcript.words > 0;
  const running = isRunning();
  const goesOn = has && !isSample && kind() !== "upload"; // a file that is read as a whole replaces what stands here
  $("toggle-text").textContent = running ? "Stop" : goesOn ? "Continue" : "Start";
  for (const id of ["copy", "save"]) $(id).disabled = !has;
  $("clear").disabled = !has || running;
  $("hint").hidden = has || running;
  const isMicrophone = ["microphone", "both"].includes(kind());
  const microphone = kind() === "microphone" ? microphoneName() : "";
  $("begin-source").textContent = microphone ? `${SOURCES.microphone} (${microphone})` : SOURCES[kind()];
  $("test").hidden = !isMicrophone;
}

let isFollowing = true;
function onGrown() {
  timeline.dirty = true;
  library.note();
  $("words").textContent = String(transcript.words);
  offerActions();
  if (isFollowing && !editor.open && !playback.player) $("captions").scrollTop = $("captions").scrollHeight;
  queueMicrotask(() => {
    local.send();
    sharing.send();
  });
}

function onScroll() {
  const { scrollTop, scrollHeight, clientHeight } = $("captions");
  isFollowing = scrollHeight - scrollTop - clientHeight < 60;
  $("follow").hidden = isFollowing || !connection;
}

function offerHistory() {
  $("undo").disabled = !editor.history.done.length;
  $("redo").disabled = !editor.history.undone.length;
}

function notice(text) {
  $("notice-text").textContent = text;
  $("notice").hidden = false;
}

function hideNotice() {
  $("notice").hidden = true;
}

function showSettings(isOpen) {
  $("settings").hidden = !isOpen;
  $("settings-open").setAttribute("aria-expanded", String(isOpen));
}

function openPicture(isOpen) {
  timeline.isOpen = isOpen;
  timeline.dirty = true;
  $("picture").classList.toggle("open", isOpen);
  $("picture-open").setAttribute("aria-expanded", String(isOpen));
}

// The captions alone, on the whole screen; Escape ends it.
async function read() {
  try {
    await document.documentElement.requestFullscreen();
  } catch {
    document.body.classList.toggle("reading"); // this browser gives no page the whole screen
  }
}

function clear() {
  isSample = false;
  playback.close();
  transcript.clear();
  timeline.clear();
  lateness.clear();
  recording.clear();
  library.begin();
  editor.history.clear();
  call("");
  $("audio").textContent = "0:00";
}

async function keepAwake() {
  try {
    wakeLock = await navigator.wakeLock?.request("screen");
  } catch {
    wakeLock = null; // a battery that is low comes first
  }
}

// Wiring

const on = (id, type, act) => $(id).addEventListener(type, act);
on("toggle", "click", () => {
  if (!isRunning()) start();
  else if (uploading.isRunning) uploading.cancel();
  else if (connection && connection.state === "finishing") connection.abandon();
  else stop();
});
on("begin", "click", start);
on("sample", "click", playSample);
on("test", "click", () => microphoneTest.toggle($("device").value));
on("device", "change", offerActions);
on("file", "change", () => {
  if (!$("file").files.length || isRunning()) return;
  if (!["file", "upload"].includes(kind())) choose("upload");
  start();
});
on("file", "cancel", () => choose("microphone"));
document.querySelectorAll('input[name="source"]').forEach((input) =>
  input.addEventListener("change", () => {
    $("file").value = "";
    offerActions();
    if (["file", "upload"].includes(kind())) $("file").click();
  }),
);
function choose(value) {
  document.querySelector(`input[name="source"][value="${value}"]`).checked = true;
  offerActions();
}
on("reading", "click", read);
document.addEventListener("fullscreenchange", () => document.body.classList.toggle("reading", document.fullscreenElement !== null));
on("settings-open", "click", () => showSettings($("settings").hidden));
on("picture-open", "click", () => openPicture(!timeline.isOpen));
on("timeline", "click", () => openPicture(!timeline.isOpen));
on("upload-cancel", "click", () => uploading.cancel());
on("copy", "click", () => copy(transcript));
on("clear", "click", clearPage);
document.querySelectorAll(".save").forEach((button) =>
  button.addEventListener("click", () => {
    $("formats").hidePopover?.();
    const about = { name: title, title: titleOf(), model, duration: now() };
    save(transcript, button.dataset.format, about, key()).catch(({ message }) => notice(message));
  }),
);
placeMenu($("formats"), $("save"));
on("undo", "click", () => editor.history.undo());
on("redo", "click", () => editor.history.redo());
editor.history.addEventListener("change", offerHistory);
on("smaller", "click", () => resize(-1));
on("larger", "click", () => resize(1));
on("notice-close", "click", hideNotice);
on("settings", "change", keepSettings);
on("fields", "submit", (event) => event.preventDefault());
const listAll = async () => chips.offer(await listModels(name));
on("key", "change", listAll);
on("model", "change", () => chips.offer(listTargets(name)));
on("captions", "scroll", onScroll);
on("follow", "click", () => {
  isFollowing = true;
  onGrown();
});
transcript.addEventListener("grown", onGrown);
transcript.addEventListener("language", onLegend);
transcript.addEventListener("doubt", () => showDoubts(transcript));
transcript.addEventListener("speaker", () => {
  timeline.makeRoom(transcript.speakers.length);
  showSpeakers(transcript, speakerMenu);
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, select, textarea, button, summary, audio, dialog");
  const isInText = transcript.words > 0 && event.target.closest("#captions");
  const command = (event.ctrlKey || event.metaKey) && !event.altKey;
  const letter = event.key.toLowerCase();
  if (command && letter === "z" && !event.target.closest("input, textarea")) {
    event.preventDefault();
    if (event.shiftKey) editor.history.redo();
    else editor.history.undo();
  }
  if (command && letter === "f" && transcript.words) {
    event.preventDefault();
    finder.toggle(true);
  }
  if (event.key === "Escape") document.body.classList.remove("reading");
  if (event.repeat || command || event.altKey) return;
  if (letter === "f" && !event.target.closest("input, select, textarea, dialog")) read();
  if (event.code !== "Space" || isTyping || isInText || isRunning()) return;
  event.preventDefault();
  start();
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  const file = event.dataTransfer?.files[0];
  if (file && !isRunning()) upload(file);
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") {
    library.keep();
    microphoneTest.end();
  } else if (source) keepAwake();
});
navigator.mediaDevices?.addEventListener("devicechange", nameMicrophones);
window.addEventListener("beforeunload", (event) => {
  if ((source && !isSample) || (library.isFailing && transcript.words)) event.preventDefault();
});
restoreSettings();
chips.show();
library.restore();
invitations.show();
nameMicrophones();
listAll();
