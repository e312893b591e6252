// Gives what is said here to others: to windows of this browser, and to readers who have the link, by the server.

import { CHANNEL } from "./feed.js";
import { refusal } from "./refusal.js";

const AGAIN_MS = [250, 500, 1000, 2000, 4000, 8000];
const REFUSED = 1008;
const TOO_MANY = 429;
const KEEP_ALIVE_MS = 20000;
const AT_ONCE = 50; // utterances in a message: the server takes two million characters

// What has changed in a transcript since the last time, as messages.
class Changes {
  // cleared: the last time of clearing that they know who get the messages; -1: they begin anew with the first one.
  constructor(transcript, cleared = -1) {
    this.transcript = transcript;
    this.sent = -1;
    this.cleared = cleared;
    this.now = "";
    this.stopped = undefined; // not told yet
  }

  *messages() {
    const { transcript, sent } = this;
    const changed = transcript.utterances.filter(({ revision }) => revision > sent).map(document);
    const now = document(transcript.spoken);
    const parts = [];
    for (let at = 0; at < changed.length; at += AT_ONCE) parts.push({ utterances: changed.slice(at, at + AT_ONCE) });
    const rest = parts.pop() ?? {};
    if (JSON.stringify(now) !== this.now) rest.now = now;
    if (sent < 0 || transcript.renamed > sent) rest.names = { ...transcript.called };
    if (transcript.stopped !== this.stopped) rest.stopped = this.stopped = transcript.stopped;
    parts.push(rest);
    if (transcript.cleared > this.cleared) parts[0].clear = true;
    this.cleared = transcript.cleared;
    this.sent = transcript.revision;
    this.now = JSON.stringify(now);
    for (const part of parts) if (Object.keys(part).length) yield { type: "captions", ...part };
  }
}

// An utterance as readers get it.
function document(utterance) {
  if (!utterance) return null;
  const { id, start, end, language = null, words, translation = null, unstable = null } = utterance;
  const told = words.map(({ word, start, end, language = null, speaker = null }) => ({ word, ...times(start, end), language, speaker }));
  return { id, ...times(start, end), language, words: told, translation, unstable };
}

// To a millisecond.
function times(start, end) {
  return { start: Math.round(1000 * start) / 1000, end: Math.round(1000 * end) / 1000 };
}

// For windows of this browser; always on.
export class LocalSharing {
  constructor(transcript) {
    this.channel = new BroadcastChannel(CHANNEL);
    this.changes = new Changes(transcript);
    this.hasWatchers = false;
    this.channel.onmessage = ({ data }) => {
      if (data.type !== "hello") return;
      this.hasWatchers = true;
      this.changes = new Changes(transcript);
      this.send();
    };
  }

  send() {
    if (!this.hasWatchers) return;
    for (const message of this.changes.messages()) this.channel.postMessage(message);
  }
}

// For readers who have the link. Events: "state" with off, connecting, on, lost; "readers"; "error" with a message.
export class Sharing extends EventTarget {
  constructor(transcript) {
    super();
    this.transcript = transcript;
    this.state = "off";
    this.token = null;
    this.readers = 0;
    setInterval(() => this.say({ type: "keepalive" }), KEEP_ALIVE_MS);
  }

  start(key) {
    this.key = key;
    this.attempts = 0;
    this.resume = null;
    this.cleared = null; // of the text that readers have
    this.connect();
  }

  connect() {
    this.change("connecting");
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const offers = ["sottovoce"];
    if (this.key) offers.push(`sottovoce-key.${this.key}`);
    if (this.resume) offers.push(`sottovoce-resume.${this.resume}`);
    const socket = new WebSocket(`${scheme}://${location.host}/v1/captions`, offers);
    this.socket = socket;
    this.changes = null;
    let fault = null;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "ready") this.begin(message);
      if (message.type === "readers") this.readers = message.readers;
      if (message.type === "error") fault = message.error;
      this.dispatchEvent(new Event("readers"));
    };
    let isOpened = false;
    socket.onopen = () => (isOpened = true);
    socket.onclose = async ({ code }) => {
      const refused = isOpened ? null : await this.refused();
      const isFinal = refused && refused.status < 500 && refused.status !== TOO_MANY;
      this.closed(socket, isFinal ? REFUSED : code, refused?.error ?? fault);
    };
  }

  // Ask why the socket was not opened.
  refused() {
    const headers = {};
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    if (this.resume) headers["x-captions-resume"] = this.resume;
    return refusal("/v1/captions", headers);
  }

  // url: of the server for other machines; null: it is not known, or there is none.
  begin({ token, resume, url }) {
    this.attempts = 0;
    Object.assign(this, { token, resume, url });
    this.cleared ??= this.transcript.cleared;
    this.changes = new Changes(this.transcript, this.cleared);
    this.change("on");
    this.send();
  }

  closed(socket, code, fault) {
    if (socket !== this.socket) return;
    this.changes = null;
    if (fault?.code === "no_such_captions") this.resume = this.cleared = null; // too late: readers need a new link
    const isFinal = code === REFUSED && !["no_such_captions", "slow_reader"].includes(fault?.code);
    if (isFinal) {
      this.stop();
      this.dispatchEvent(new CustomEvent("error", { detail: fault }));
      return;
    }
    this.change("lost");
    const wait = Math.max(AGAIN_MS[Math.min(this.attempts, AGAIN_MS.length - 1)], 1000 * (fault?.retry_after ?? 0));
    this.retry = setTimeout(() => this.connect(), wait);
    this.attempts += 1;
  }

  // Send what has changed.
  send() {
    if (!this.changes) return;
    for (const message of this.changes.messages()) this.say(message);
    this.cleared = this.changes.cleared;
  }

  say(message) {
    if (this.socket?.readyState === WebSocket.OPEN && this.state === "on") this.socket.send(JSON.stringify(message));
  }

  stop() {
    this.say({ type: "close" });
    clearTimeout(this.retry);
    this.socket = null; // the server closes it
    this.changes = null;
    this.token = null;
    this.readers = 0;
    this.change("off");
  }

  change(state) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
