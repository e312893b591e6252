// The settings: kept in this browser, the key until the tab is closed; and what the server and the machine offer.

import { microphones } from "./sources.js";

const SETTINGS = ["languages", "switching", "translate_to", "device", "model", "terms", "speakers", "unstable", "finals", "doubtful"];
const SIZES = [0.8, 0.9, 1, 1.15, 1.35, 1.6, 2];
const $ = (id) => document.getElementById(id);
let usual = ""; // the name of the microphone that the browser takes by itself
let models = []; // that may be asked for, the default one first

export function restoreSettings() {
  const asked = new URLSearchParams(location.search);
  for (const name of SETTINGS) {
    const value = asked.get(name) ?? localStorage.getItem(`sottovoce.${name}`);
    if (value === null) continue;
    if ($(name).type === "checkbox") $(name).checked = value === "true";
    else setValue($(name), value);
  }
  $("key").value = sessionStorage.getItem("sottovoce.key") ?? "";
  underlineDoubts();
  $("doubtful").addEventListener("change", () => (keepSettings(), underlineDoubts()));
  resize(0);
}

// A value of a list whose choices may be known only later.
function setValue(field, value) {
  if (field instanceof HTMLSelectElement && ![...field.options].some((option) => option.value === value)) {
    field.add(new Option(value, value));
  }
  field.value = value;
}

export function keepSettings() {
  for (const name of SETTINGS) {
    const field = $(name);
    localStorage.setItem(`sottovoce.${name}`, field.type === "checkbox" ? String(field.checked) : field.value);
  }
  sessionStorage.setItem("sottovoce.key", $("key").value);
}

// Underline doubtful words, or not.
function underlineDoubts() {
  document.body.classList.toggle("no-doubts", !$("doubtful").checked);
}

// The parameters of a live session. kind: of its source.
export function liveParameters(kind) {
  const parameters = { captions: $("unstable").checked ? "revisable" : "firm", switching: $("switching").value };
  if (kind === "both") parameters.sources = "Me,Others"; // who are speakers, and can be given names
  else if ($("speakers").checked) parameters.speakers = "auto";
  if ($("finals").checked) parameters.finals = "read";
  for (const name of ["languages", "translate_to", "model", "terms"]) if ($(name).value.trim()) parameters[name] = $(name).value.trim();
  return parameters;
}

// The fields of a form that sends a recording.
export function uploadFields() {
  const list = (name) => $(name).value.split(",").map((value) => value.trim()).filter(Boolean);
  const languages = list("languages").filter((language) => language !== "auto");
  return [
    ["stream", "true"],
    ["response_format", $("speakers").checked ? "diarized_json" : "verbose_json"],
    ["timestamp_granularities[]", "word"],
    ...($("model").value ? [["model", $("model").value]] : []),
    ...languages.map((language) => ["languages[]", language]),
    ...list("terms").map((term) => ["keywords[]", term]),
  ];
}

export async function listMicrophones() {
  const chosen = $("device").value;
  const found = await microphones();
  const options = found.map(({ deviceId, label }, i) => new Option(label || `microphone ${i + 1}`, deviceId));
  $("device").replaceChildren(new Option("default", ""), ...options);
  $("device").value = found.some(({ deviceId }) => deviceId === chosen) ? chosen : "";
  usual = found[0]?.label ?? "";
}

// What the chosen microphone is called; empty until the page was allowed to listen.
export function microphoneName() {
  const { value, selectedOptions } = $("device");
  return value && usual ? selectedOptions[0].text : usual;
}

// name: of a language, from its code. Returns the languages that the chosen model knows.
export async function listModels(name) {
  const key = $("key").value.trim();
  const answer = await fetch("/v1/models", { headers: key ? { authorization: `Bearer ${key}` } : {} });
  if (!answer.ok) return [];
  const chosen = $("model").value;
  const { data } = await answer.json();
  models = data.filter(({ id, model: meant }) => id === meant);
  $("model").replaceChildren(new Option("default", ""), ...models.map(({ id }) => new Option(id, id)));
  setValue($("model"), chosen);
  return listTargets(name);
}

// List the languages that the chosen model's words can be translated into, by their names; return those it knows.
export function listTargets(name) {
  const chosen = $("translate_to").value;
  const { translates_to: codes, languages } = models.find(({ id }) => id === $("model").value) ?? models[0];
  const targets = codes.map((code) => new Option(name(code), code));
  targets.sort((a, b) => a.text.localeCompare(b.text));
  $("translate_to").replaceChildren(new Option("nothing", ""), ...targets);
  $("translate_to").value = codes.includes(chosen) ? chosen : "";
  return languages;
}

// Make the text larger (1) or smaller (-1).
export function resize(step) {
  const kept = SIZES.indexOf(Number(localStorage.getItem("sottovoce.size") ?? 1));
  const place = Math.max(0, Math.min(SIZES.length - 1, (kept < 0 ? 2 : kept) + step));
  localStorage.setItem("sottovoce.size", SIZES[place]);
  document.documentElement.style.setProperty("--size", SIZES[place]);
  for (const [id, end] of [["smaller", 0], ["larger", SIZES.length - 1]]) if ($(id)) $(id).disabled = place === end;
}
