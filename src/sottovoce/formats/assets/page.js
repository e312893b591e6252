"use strict";
const player = document.getElementById("player");
const text = document.getElementById("text");
const lanes = document.getElementById("lanes");
const end = document.getElementById("end");
const segments = [...text.querySelectorAll(".segment")];
const words = [...text.querySelectorAll(".w")];
const from = (element) => Number(element.dataset.s);
const to = (element) => Number(element.dataset.e);
const lastEnd = segments.reduce((latest, segment) => Math.max(latest, to(segment)), 0);
const duration = Math.max(Number(end.dataset.duration), lastEnd, 0.001);
const hues = [210, 28, 140, 290, 350, 50, 180, 100];
const followed = () => document.getElementById("follow").checked;

document.getElementById("facts").textContent = end.dataset.facts;

// Neighbours that say the same are one block of a lane; a speaker keeps the colour in the text.
function drawLane(valueOf, paint) {
  const values = new Map();
  const blocks = [];
  for (const segment of segments) {
    const value = valueOf(segment);
    if (!value) continue;
    if (!values.has(value)) values.set(value, hues[values.size % hues.length]);
    const last = blocks[blocks.length - 1];
    if (last && last.value === value && from(segment) - last.end < 0.02 * duration) last.end = to(segment);
    else blocks.push({ value, start: from(segment), end: to(segment) });
    paint(segment, value, values.get(value));
  }
  if (!values.size) return;
  const lane = document.createElement("div");
  lane.className = "lane";
  for (const block of blocks) {
    const piece = document.createElement("i");
    piece.style.left = `${(100 * block.start) / duration}%`;
    piece.style.width = `max(2px, ${(100 * (block.end - block.start)) / duration}%)`;
    piece.style.setProperty("--hue", values.get(block.value));
    piece.textContent = piece.title = block.value;
    lane.append(piece);
  }
  lanes.append(lane);
  return values;
}

let before = "";
const languages = new Set(segments.map((segment) => segment.lang));
drawLane((segment) => segment.lang, (segment, language) => {
  if (languages.size > 1 && language !== before) {
    const tag = document.createElement("span");
    tag.className = "tag";
    tag.textContent = language;
    segment.querySelector(".said").prepend(tag);
  }
  before = language;
});
drawLane((segment) => segment.dataset.speaker, (segment, _, hue) => segment.style.setProperty("--hue", hue));
const head = document.createElement("div");
head.id = "head";
if (lanes.childElementCount) lanes.append(head);

// A pause before the first sound, or no recording: neither is worth a word.
function start() {
  player.play().catch(() => {});
}

function go(seconds, play) {
  if (!player.src) return;
  player.currentTime = Math.max(0, seconds);
  if (play) start();
  show();
}

// The last element of a sorted list that begins at or before a time.
function at(list, seconds) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (from(list[middle]) <= seconds) low = middle + 1; else high = middle;
  }
  return low - 1;
}

const lit = new Map();
function light(kind, element) {
  const old = lit.get(kind);
  if (old === element) return false;
  if (old) old.classList.remove("on");
  if (element) element.classList.add("on");
  lit.set(kind, element);
  return true;
}

function show() {
  const now = player.currentTime;
  head.style.left = `${Math.min(100, (100 * now) / duration)}%`;
  const word = words[at(words, now + 0.01)];
  light("word", word && now < to(word) + 0.2 ? word : null);
  const segment = segments[at(segments, now + 0.01)];
  if (light("segment", segment) && segment && followed() && !player.paused) {
    const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
    segment.scrollIntoView({ block: "center", behavior: quiet ? "auto" : "smooth" });
  }
}

function tick() {
  show();
  if (!player.paused) requestAnimationFrame(tick);
}

function load(file) {
  if (player.src.startsWith("blob:")) URL.revokeObjectURL(player.src);
  player.src = URL.createObjectURL(file);
}

function colour(on) {
  text.classList.toggle("coloured", on);
  document.getElementById("legend").style.visibility = on ? "" : "hidden";
}

player.addEventListener("play", tick);
player.addEventListener("seeked", show);
text.addEventListener("click", (event) => {
  const target = event.target.closest(".w, .at");
  if (!target) return;
  if (target.matches(".at")) event.preventDefault();
  if (!getSelection().isCollapsed) return;
  go(from(target.matches(".at") ? target.parentElement : target), true);
});
lanes.addEventListener("click", (event) => {
  const box = lanes.getBoundingClientRect();
  go((duration * (event.clientX - box.left)) / box.width, false);
});
document.getElementById("file").addEventListener("change", (event) => {
  if (event.target.files.length) load(event.target.files[0]);
});
const colours = document.getElementById("colours");
colours.addEventListener("change", () => colour(colours.checked));

function line(step) {
  const index = Math.max(0, Math.min(segments.length - 1, at(segments, player.currentTime + 0.01) + step));
  if (segments.length) go(from(segments[index]), !player.paused);
}

const keys = {
  " ": () => (player.paused ? start() : player.pause()),
  ArrowLeft: () => go(player.currentTime - 5, false),
  ArrowRight: () => go(player.currentTime + 5, false),
  ArrowUp: () => line(-1),
  ArrowDown: () => line(1),
  c: () => colours.click(),
};
document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  if (target === player || target.matches("input, a") && event.key !== "c") return;
  event.preventDefault();
  keys[event.key]();
});

const wish = location.hash.match(/^#t=([\d.]+)$/);
if (wish) go(Number(wish[1]), false);
// Times are only worth colouring where the words are known.
for (const id of ["legend", "colours"]) {
  if (!words.length) document.getElementById(id).closest("label, span").hidden = true;
}
if (player.src) {
  document.getElementById("choose").hidden = true;
  player.addEventListener("error", () => { document.getElementById("choose").hidden = false; });
}
colour(colours.checked);
