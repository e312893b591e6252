// The page of an invitation: all that was said in somebody's session, and what is being said. It only reads.

import { Feed } from "./feed.js";
import { Palette } from "./rendering.js";
import { resize } from "./settings.js";

const TELLS = {
  connecting: "connecting…",
  waiting: "waiting for captions in this browser",
  live: "live",
  ended: "the session is over: this text goes when you close the page",
  lost: "connection lost: trying again",
  full: "too many readers just now: trying again",
  unknown: "not shared",
};
const EXPIRED = "This link belongs to no session that goes on. Ask for a new one.";
const STATES = { live: "live", stopped: "ended", ended: "ended", unknown: "refused", lost: "reconnecting", full: "reconnecting" };

const $ = (id) => document.getElementById(id);
const token = location.hash.slice(1);
const palette = new Palette();
const feed = new Feed(token);
const elements = new Map();
let isFollowing = true;

// What of an utterance is shown where one language is wanted: what was said in it, or its translation.
function wanted(utterance) {
  const language = $("language").value;
  if (!language) return utterance;
  const { translation } = utterance;
  const words = utterance.words.filter((word) => word.language === language);
  const unstable = utterance.unstable?.language === language ? utterance.unstable : null;
  return { ...utterance, words, unstable, translation: translation?.language === language ? translation : null };
}

function draw(utterance, options) {
  const shown = wanted(utterance);
  const element = palette.element(shown, options);
  element.hidden = !shown.words.length && !shown.translation && !shown.unstable;
  return element;
}

function show({ ids, isAll }) {
  palette.called = feed.names;
  if (isAll) {
    elements.clear();
    $("log").replaceChildren();
  }
  const changed = isAll ? [...feed.utterances.keys()].sort((a, b) => a - b) : ids;
  for (const id of changed) showOne(id);
  if (feed.now) $("now").replaceChildren(draw(feed.now, { isWhole: false }));
  else $("now").replaceChildren();
  $("hint").hidden = feed.all.length > 0;
  offerLanguages();
  if (isFollowing) $("captions").scrollTop = $("captions").scrollHeight;
}

function showOne(id) {
  const utterance = feed.utterances.get(id);
  const before = elements.get(id);
  if (!utterance) {
    before?.remove();
    elements.delete(id);
    return;
  }
  const element = draw(utterance);
  element.dataset.id = id;
  elements.set(id, element);
  if (before) before.replaceWith(element);
  else $("log").insertBefore(element, [...$("log").children].find((other) => Number(other.dataset.id) > id) ?? null);
}

function offerLanguages() {
  const found = new Set(palette.languages);
  for (const { translation } of feed.all) if (translation?.language) found.add(translation.language);
  const { options } = $("language");
  for (const language of found) {
    if (language && ![...options].some(({ value }) => value === language)) $("language").add(new Option(palette.name(language), language));
  }
  $("only").hidden = options.length < 3;
}

function tell(state) {
  $("status").dataset.state = STATES[state] ?? "connecting";
  $("status-text").textContent = TELLS[state] ?? `ended ${feed.stoppedAt}`;
  if (state === "unknown") $("hint").textContent = EXPIRED;
}

feed.addEventListener("change", ({ detail }) => show(detail));
feed.addEventListener("state", ({ detail }) => tell(detail));
tell(feed.state);
$("language").addEventListener("change", () => show({ ids: [], isAll: true }));
$("smaller").addEventListener("click", () => resize(-1));
$("larger").addEventListener("click", () => resize(1));
$("captions").addEventListener("scroll", () => {
  const { scrollTop, scrollHeight, clientHeight } = $("captions");
  isFollowing = scrollHeight - scrollTop - clientHeight < 60;
  $("follow").hidden = isFollowing;
});
$("follow").addEventListener("click", () => {
  isFollowing = true;
  $("captions").scrollTop = $("captions").scrollHeight;
});
$("view").href = `/captions#${token}`;
$("only").hidden = true;
resize(0);
