// The socket: audio goes out, events come in, and what was not yet understood is said again after a break.

import { refusal } from "./refusal.js";

const RATE = 16000;
const MARGIN_SAMPLES = 0.1 * RATE; // by which times are rounded
const KEPT_SAMPLES = 180 * RATE; // audio kept for saying it again
const BUFFERED_BYTES = 128 * 1024; // 4 s: more is held back until the network has taken it
const KEEP_ALIVE_MS = 20000;
const AGAIN_MS = [250, 500, 1000, 2000, 4000, 8000];
const REFUSED = 1008;
const TOO_MANY = 429;

export class Connection extends EventTarget {
  // parameters: of the address of the socket. Events: "message" (document, offset in seconds), "state".
  constructor(parameters, key) {
    super();
    this.parameters = parameters;
    this.key = key;
    this.sources = parameters.sources?.split(",") ?? [undefined]; // whose samples alternate in the audio
    this.chunks = []; // {start, pcm}, start in samples of a source since the beginning
    this.end = 0; // samples taken so far
    this.sent = 0;
    this.offset = 0; // where the server's session begins, in samples
    this.heard = this.sources.map(() => 0); // by source: all before this was said or was silence
    this.silent = this.sources.map(() => 0); // by source: the end of the speech before this
    this.attempts = 0;
    this.voices = null; // of the speakers so far, as the server gave them: another session is handed them
    this.ending = false;
    this.state = "connecting";
    this.timer = setInterval(() => this.tick(), 200);
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const address = `${scheme}://${location.host}/v1/live?${new URLSearchParams(this.parameters)}`;
    this.socket = new WebSocket(address, ["sottovoce", ...(this.key ? [`sottovoce-key.${this.key}`] : [])]);
    this.isReady = this.isOpened = false;
    this.socket.onopen = () => (this.isOpened = true);
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = ({ code, reason }) => this.closed(code, reason);
    this.change("connecting");
  }

  receive(message) {
    if (message.type === "ready") {
      this.isReady = true;
      this.spoke = performance.now();
      this.attempts = 0;
      this.offset = Math.max(this.understood, this.chunks[0]?.start ?? this.end);
      this.sent = this.offset;
      this.silent.fill(0);
      this.silence();
      if (this.voices) this.say({ type: "voices", voices: this.voices });
      this.change("live");
      this.pump();
    }
    if (message.type === "voices") this.voices = message.voices;
    if (message.type === "final" && this.parameters.speakers && !this.hasSaidClose) this.say({ type: "voices" });
    if (message.type === "error") this.fault = message.error;
    if (message.type === "closed") this.isFinished = this.ending;
    const offset = this.offset / RATE;
    this.note(message, offset);
    this.dispatchEvent(new CustomEvent("message", { detail: { message, offset } }));
  }

  // Audio that will not be needed again: words that were committed, and silence. A server that ends closes the speech where
  // its audio ends, which may be within a word: only audio after it shows that there was silence.
  note({ type, end, source, received }, offset) {
    const place = this.sources.indexOf(source);
    if (type === "speech_ended") this.silent[place] = Math.round((end + offset) * RATE);
    if (["partial", "final"].includes(type)) this.heard[place] = Math.max(this.heard[place], Math.round((end + offset) * RATE));
    if (type === "status") {
      const certain = Math.round((received + offset) * RATE) - MARGIN_SAMPLES;
      this.silent.forEach((at, i) => at <= certain && (this.heard[i] = Math.max(this.heard[i], at)));
    }
    this.forget();
  }

  // All before this was said by every source, or was silence.
  get understood() {
    return Math.min(...this.heard);
  }

  // Of several sources some are further: what they said is not sent again.
  silence() {
    for (const { start, pcm } of this.chunks) {
      this.heard.forEach((until, place) => {
        for (let at = place; at < pcm.length && start + Math.floor(at / this.sources.length) < until; at += this.sources.length) pcm[at] = 0;
      });
    }
  }

  push(pcm) {
    this.chunks.push({ start: this.end, pcm });
    this.end += pcm.length / this.sources.length;
    this.forget();
    this.pump();
  }

  forget() {
    const needed = Math.min(this.understood, this.isReady ? this.sent : this.end);
    const kept = Math.max(needed, this.end - KEPT_SAMPLES);
    while (this.chunks.length && this.endOf(this.chunks[0]) <= kept) this.chunks.shift();
  }

  endOf({ start, pcm }) {
    return start + pcm.length / this.sources.length;
  }

  tick() {
    this.pump();
    if (this.isReady && performance.now() - this.spoke > KEEP_ALIVE_MS) this.say({ type: "keepalive" });
  }

  say(message) {
    this.spoke = performance.now();
    this.socket.send(JSON.stringify(message));
  }

  pump() {
    if (!this.isReady || this.socket.readyState !== WebSocket.OPEN) return;
    for (const chunk of this.chunks) {
      const { start, pcm } = chunk;
      if (this.endOf(chunk) <= this.sent) continue;
      if (this.socket.bufferedAmount > BUFFERED_BYTES) break;
      this.socket.send(this.sent > start ? pcm.subarray((this.sent - start) * this.sources.length) : pcm);
      this.sent = this.endOf(chunk);
      this.spoke = performance.now();
    }
    if (this.ending && this.sent >= this.end && !this.hasSaidClose) {
      this.hasSaidClose = true;
      this.say({ type: "close" });
    }
  }

  get seconds() {
    return this.end / RATE;
  }

  // Change parameters of the session, now and after a break.
  configure(parameters) {
    this.parameters = { ...this.parameters, ...parameters };
    if (this.isReady && !this.hasSaidClose) this.say({ type: "configure", ...parameters });
  }

  // Send what is left, and ask for the rest of the words.
  finish() {
    this.ending = true;
    this.change("finishing");
    this.pump();
  }

  async closed(code, reason) {
    this.isReady = false;
    this.hasSaidClose = false;
    if (!this.isOpened && !this.isAbandoned && (await this.isRefused())) code = REFUSED;
    this.dispatchEvent(new Event("lost"));
    if (this.isFinished || this.isAbandoned) this.stop("ended");
    else if (code === REFUSED) this.stop("refused", this.fault?.message ?? reason, this.fault?.code);
    else this.again();
  }

  // Ask why a socket was not opened, which a page cannot see; whether another try is of no use.
  async isRefused() {
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    const address = `/v1/live?${new URLSearchParams(this.parameters)}`;
    const refused = await refusal(address, headers);
    if (!refused) return false;
    this.fault = refused.error;
    return refused.status < 500 && refused.status !== TOO_MANY;
  }

  again() {
    const wait = Math.max(AGAIN_MS[Math.min(this.attempts, AGAIN_MS.length - 1)], 1000 * (this.fault?.retry_after ?? 0));
    this.attempts += 1;
    this.change("reconnecting", this.fault?.message, this.fault?.code);
    this.fault = undefined;
    this.retry = setTimeout(() => this.open(), wait);
  }

  // Do not wait for anything any more.
  abandon() {
    this.isAbandoned = true;
    clearTimeout(this.retry);
    if (this.socket.readyState === WebSocket.CLOSED) this.stop("ended");
    else this.socket.close(1000);
  }

  stop(state, reason, code) {
    clearInterval(this.timer);
    this.change(state, reason, code);
  }

  change(state, reason, code) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, reason, code } }));
  }
}
