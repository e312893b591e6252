// The caption view: the newest lines of a session, large, for a projector or over a picture.

import { Feed } from "./feed.js";
import { lookOf, MOST_LINES, shownOf } from "./look.js";

const UTTERANCES = 6; // more never fit into three lines
const TELLS = {
  connecting: "connecting…",
  waiting: "waiting for captions in this browser",
  live: "live",
  ended: "the session is over",
  lost: "connection lost: trying again",
  full: "too many readers: trying again",
  unknown: "This link belongs to no session that goes on. Ask for a new one.",
};
const STEP = 1.15;
const CALM_MS = 2500;
const LEAST_LINE = 1.36; // in em

const $ = (id) => document.getElementById(id);
const look = lookOf(new URLSearchParams(location.search));
const feed = new Feed(location.hash.slice(1));
let scale = 1;

function dress() {
  const { style, dataset } = document.documentElement;
  const set = (name, value) => style.setProperty(`--${name}`, value);
  set("lines", look.lines);
  set("size", `calc(${look.size} * ${scale})`);
  set("color", look.color);
  set("box", look.box === "none" ? "transparent" : look.box);
  set("background", look.background);
  if (look.font) set("font", look.font);
  Object.assign(dataset, { align: look.align, position: look.position, outlined: look.box === "none", background: look.background });
  set("line", lineHeight());
  $("n-lines").textContent = `${look.lines} ${look.lines === 1 ? "line" : "lines"}`;
  $("fewer").disabled = look.lines === 1;
  $("more").disabled = look.lines === MOST_LINES;
}

// Height of a line in em, a whole number of pixels: that of the font's letters with the box around them, so that boxes
// meet and never overlap.
function lineHeight() {
  const style = getComputedStyle(document.body);
  const size = parseFloat(style.fontSize);
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${style.fontWeight} ${size}px ${style.fontFamily}`;
  const { fontBoundingBoxAscent, fontBoundingBoxDescent } = context.measureText("x");
  const letters = (fontBoundingBoxAscent + fontBoundingBoxDescent) / size;
  return Math.ceil(Math.max(LEAST_LINE, letters + 2 * style.getPropertyValue("--pad")) * size) / size;
}

function span(text, language, kind) {
  const element = document.createElement("span");
  element.className = kind;
  if (language) element.lang = language;
  element.dir = "auto";
  element.textContent = text;
  return element;
}

// Lines of one utterance, each a paragraph: a turn of each speaker, then the translation.
function paragraphs(utterance) {
  const found = [];
  let last = null;
  for (const { text, language, speaker, isUnstable, isTranslation } of shownOf(utterance, look)) {
    const isTurn = !last || isTranslation || (look.speakers && speaker && speaker !== last.speaker);
    if (isTurn) {
      const paragraph = document.createElement("p");
      const inner = document.createElement("span");
      inner.className = "line";
      paragraph.append(inner);
      if (look.speakers && speaker) inner.append(span(feed.names[speaker] ?? speaker, null, "who"));
      found.push(paragraph);
    }
    const kind = isTranslation ? "other" : isUnstable ? "unstable" : "said";
    found.at(-1).firstChild.append(span(isTurn ? text.trimStart() : text, language, kind));
    last = { speaker: isUnstable ? last?.speaker : speaker };
  }
  return found;
}

// An expired link has nothing else to show.
function tell(state) {
  $("state").textContent = TELLS[state] ?? `ended ${feed.stoppedAt}`;
  if (state !== "unknown") return;
  const paragraph = document.createElement("p");
  paragraph.append(span(TELLS.unknown, null, "line"));
  $("roll").replaceChildren(paragraph);
  $("lines").hidden = false;
}

let quietTimer = 0;
function show() {
  const newest = feed.all.slice(-UTTERANCES);
  $("roll").replaceChildren(...newest.flatMap(paragraphs));
  $("lines").hidden = !$("roll").childElementCount;
}

function stay() {
  document.body.classList.remove("quiet");
  clearTimeout(quietTimer);
  if (look.hold) quietTimer = setTimeout(() => document.body.classList.add("quiet"), 1000 * look.hold);
}

let calmTimer = 0;
function awake() {
  document.body.classList.add("awake");
  clearTimeout(calmTimer);
  calmTimer = setTimeout(() => document.body.classList.remove("awake"), CALM_MS);
}

function lines(change) {
  look.lines = Math.max(1, Math.min(MOST_LINES, look.lines + change));
  dress();
}

function resize(step) {
  scale = Math.max(0.3, Math.min(4, scale * STEP ** step));
  dress();
}

function full() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen();
}

feed.addEventListener("change", () => {
  show();
  stay();
});
feed.addEventListener("state", ({ detail }) => tell(detail));
tell(feed.state);
$("fewer").addEventListener("click", () => lines(-1));
$("more").addEventListener("click", () => lines(1));
$("smaller").addEventListener("click", () => resize(-1));
$("larger").addEventListener("click", () => resize(1));
$("full").addEventListener("click", full);
document.addEventListener("dblclick", (event) => event.target.closest("button") || full());
addEventListener("resize", dress);
document.addEventListener("pointermove", awake);
document.addEventListener("focusin", awake);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = { f: full, "+": () => resize(1), "-": () => resize(-1) }[event.key.toLowerCase()];
  if (["1", "2", "3"].includes(event.key)) lines(Number(event.key) - look.lines);
  else act?.();
});
dress();
