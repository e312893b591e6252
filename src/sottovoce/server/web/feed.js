// Captions of a session as a reader gets them: by the token of an invitation, or from another window of this browser.

import { refusal } from "./refusal.js";

const AGAIN_MS = [250, 500, 1000, 2000, 4000, 8000];
const AWAY_MS = 60000; // within which the speaker comes back after a restart of the server
const TOKEN = /^[\w-]+$/; // what a socket can carry
export const CHANNEL = "sottovoce.captions";

// Events: "change" with {ids, hasNow, isAll}, "state" with connecting, live, stopped, waiting (nobody speaks here), ended, lost,
// full or unknown.
export class Feed extends EventTarget {
  constructor(token) {
    super();
    this.forget();
    this.state = "connecting";
    this.attempts = 0;
    this.isReading = false;
    this.broken = -Infinity; // when the last connection broke that captions came by
    this.token = token;
    if (token) this.connect();
    else this.listen();
  }

  forget() {
    this.utterances = new Map(); // by their numbers
    this.now = null;
    this.names = {};
    this.stopped = null; // when the speaker stopped, in milliseconds since 1970
  }

  // What was said, in its order; the last is the one being spoken.
  get all() {
    const found = [...this.utterances.values()].sort((a, b) => a.start - b.start || a.id - b.id);
    return this.now ? [...found, this.now] : found;
  }

  connect() {
    if (!TOKEN.test(this.token)) {
      this.change("unknown");
      return;
    }
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const offers = ["sottovoce", `sottovoce-captions.${this.token}`];
    const socket = new WebSocket(`${scheme}://${location.host}/v1/captions/read`, offers);
    let isFirst = true;
    let fault = null;
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === "captions") {
        if (isFirst) this.attempts = 0;
        this.isReading = true;
        this.take({ ...message, clear: message.clear || isFirst });
        isFirst = false;
        this.change(this.spoken);
      }
      if (message.type === "ended") this.change("ended");
      if (message.type === "error") fault = message.error;
    };
    let isOpened = false;
    socket.onopen = () => (isOpened = true);
    socket.onclose = async ({ code }) => {
      if (this.state === "ended") return;
      if (!isOpened) fault = (await refusal("/v1/captions/read", { "x-captions-token": this.token }))?.error;
      if (this.isReading) this.broken = Date.now();
      this.isReading = false;
      const isUnknown = fault?.code === "no_such_captions" && Date.now() - this.broken > AWAY_MS;
      if (code === 1000) this.change("ended");
      else if (isUnknown) this.change(this.utterances.size ? "ended" : "unknown");
      else this.again(fault?.code === "rate_limit_exceeded" ? "full" : "lost", fault?.retry_after);
    };
  }

  // seconds: when the server wants to be asked, at least.
  again(state, seconds = 0) {
    this.change(state);
    const wait = Math.max(AGAIN_MS[Math.min(this.attempts, AGAIN_MS.length - 1)], 1000 * seconds);
    setTimeout(() => this.connect(), wait);
    this.attempts += 1;
  }

  listen() {
    const channel = new BroadcastChannel(CHANNEL);
    channel.onmessage = ({ data }) => {
      if (data.type !== "captions") return;
      this.take(data);
      this.change(this.spoken);
    };
    channel.postMessage({ type: "hello" });
    this.change("waiting");
  }

  get spoken() {
    return this.stopped === null ? "live" : "stopped";
  }

  // When the speaker stopped, as a clock shows it.
  get stoppedAt() {
    return new Date(this.stopped).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  }

  take({ utterances = [], now, names, stopped, clear = false }) {
    const before = this.stopped;
    if (clear) this.forget();
    this.stopped = stopped === undefined ? before : stopped;
    for (const utterance of utterances) {
      if (utterance.words.length) this.utterances.set(utterance.id, utterance);
      else this.utterances.delete(utterance.id);
    }
    if (now !== undefined) this.now = now;
    if (names !== undefined) this.names = names;
    const ids = utterances.map(({ id }) => id);
    this.dispatchEvent(new CustomEvent("change", { detail: { ids, isAll: clear || names !== undefined } }));
  }

  change(state) {
    if (state === this.state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
