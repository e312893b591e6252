// Copying, and saving in every format.

import { asJson, asText, turnsOf } from "./exports.js";

const $ = (id) => document.getElementById(id);

// What was said, with speakers called by their names.
export function named(transcript) {
  const call = (word) => (word.speaker ? { ...word, speaker: transcript.speakerName(word.speaker) } : word);
  return transcript.all.map((utterance) => ({ ...utterance, words: utterance.words.map(call) }));
}

export async function copy(transcript) {
  await navigator.clipboard.writeText(asText(named(transcript)));
  $("copy").textContent = "Copied";
  setTimeout(() => ($("copy").textContent = "Copy"), 1500);
}

// about: {name, title, model, duration}. name: of the recording or session, for the file; empty where there is none.
// Raises an Error where the server does not make the format.
export async function save(transcript, format, about, key) {
  const utterances = named(transcript);
  const content = format === "json" ? new Blob([asJson(utterances, about)], { type: "application/json" }) : await converted(utterances, format, about, key);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  const name = about.name.replace(/[\p{Cc}<>:"/\\|?*]+/gu, " ").trim().slice(0, 120);
  link.download = `${name || `captions-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}`}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function converted(utterances, format, about, key) {
  const headers = { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const query = new URLSearchParams({ format, title: about.title });
  const answer = await fetch(`/v1/convert?${query}`, { method: "POST", headers, body: asJson(turnsOf(utterances), about) }).catch(() => null);
  if (answer?.ok) return answer.blob();
  const fault = await answer?.json().catch(() => null);
  throw new Error(fault?.error.message ?? "The server cannot be reached: it makes every format but JSON.");
}

// Let a menu open above the button that opens it.
export function placeMenu(menu, button) {
  menu.addEventListener("toggle", ({ newState }) => {
    if (newState !== "open") return;
    const { top, right } = button.getBoundingClientRect();
    menu.style.left = `${Math.max(8, right - menu.offsetWidth)}px`;
    menu.style.top = `${Math.max(8, top - menu.offsetHeight - 8)}px`;
    menu.querySelector("button").focus();
  });
}
