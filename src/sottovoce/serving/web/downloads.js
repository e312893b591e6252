// Copying, and saving in every format.

import { asDocx, DOCX } from "./docx.js";
import { asJson, asMarkdown, asSubRip, asText, asVtt } from "./exports.js";

const $ = (id) => document.getElementById(id);
const FORMATS = {
  txt: ["text/plain", asText],
  srt: ["application/x-subrip", asSubRip],
  vtt: ["text/vtt", asVtt],
  md: ["text/markdown", asMarkdown],
  docx: [DOCX, asDocx],
  json: ["application/json", asJson],
};

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
export function save(transcript, format, about) {
  const [type, write] = FORMATS[format];
  const content = write(named(transcript), about);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const name = about.name.replace(/[\p{Cc}<>:"/\\|?*]+/gu, " ").trim().slice(0, 120);
  link.download = `${name || `captions-${new Date().toISOString().slice(0, 16).replace(/[T:]/g, "-")}`}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
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
