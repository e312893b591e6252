// Where sound comes from: the microphone, a file that is played, a browser tab, or the microphone and a tab.

const RANGE_DB = 50; // of a level

// Of 1: a peak of a message, in decibels.
export function levelOf(peak) {
  return peak > 0 ? Math.max(0, 1 + (20 * Math.log10(peak)) / RANGE_DB) : 0;
}

// A source that is open: an audio context whose worklet gives messages {pcm, peak, last}, with as many channels as streams.
export class Source {
  constructor(context, onMessage) {
    this.context = context;
    this.onMessage = onMessage;
    this.streams = [];
    this.player = null;
    this.onEnded = () => {};
  }

  // kind: "microphone", "file", "tab" or "both"; must be called from a click.
  static async open(kind, { deviceId, file, player, onMessage, onEnded }) {
    const source = new Source(new AudioContext(), onMessage);
    source.onEnded = onEnded;
    try {
      await source.context.audioWorklet.addModule("/static/worklet.js"); // first: the first word is not waited for
      // A tab first: a browser offers it only right after the click.
      if (["tab", "both"].includes(kind)) source.streams.push(await grantTab());
      if (["microphone", "both"].includes(kind)) source.streams.unshift(await grantMicrophone(deviceId, kind === "both"));
      await source.start(file, player);
    } catch (error) {
      await source.close();
      throw error;
    }
    return source;
  }

  async start(file, player) {
    const { context, streams } = this;
    const nodes = streams.length ? streams.map((stream) => context.createMediaStreamSource(stream)) : [this.play(file, player)];
    this.channels = nodes.length;
    this.capture = new AudioWorkletNode(context, "capture", {
      numberOfOutputs: 1,
      processorOptions: { channels: nodes.length },
      channelCount: nodes.length,
      channelCountMode: "explicit",
      channelInterpretation: "speakers",
    });
    this.analyser = new AnalyserNode(context, { fftSize: 1024, smoothingTimeConstant: 0.2 });
    this.capture.port.onmessage = ({ data }) => this.onMessage(data, this);
    const merged = nodes.length > 1 ? context.createChannelMerger(nodes.length) : this.capture;
    nodes.forEach((node, i) => {
      node.connect(merged, 0, merged === this.capture ? 0 : i);
      node.connect(this.analyser);
    });
    if (merged !== this.capture) merged.connect(this.capture);
    this.capture.connect(context.destination); // it gives silence, and is run because it leads somewhere
    for (const stream of streams) stream.getAudioTracks()[0].addEventListener("ended", () => this.onEnded());
    await context.resume();
    if (this.player) await this.player.play();
  }

  play(file, place) {
    const player = document.createElement("audio");
    player.src = URL.createObjectURL(file);
    player.controls = true;
    player.addEventListener("ended", () => this.onEnded());
    player.addEventListener("error", () => this.onEnded(new Error("This file cannot be played by the browser.")));
    place.replaceChildren(player);
    this.player = player;
    const node = this.context.createMediaElementSource(player);
    node.connect(this.context.destination);
    return node;
  }

  // Stop listening; resolves when the last sample has been given.
  async finish() {
    if (!this.capture) return;
    if (this.player) this.player.pause();
    const last = new Promise((resolve) => {
      const before = this.onMessage;
      this.onMessage = (message) => {
        before(message, this);
        if (message.last) resolve();
      };
      setTimeout(resolve, 500); // a context that the system took away answers nothing
    });
    this.capture.port.postMessage("finish");
    await last;
    await this.close();
  }

  async close() {
    for (const stream of this.streams) stream.getTracks().forEach((track) => track.stop());
    if (this.player) {
      URL.revokeObjectURL(this.player.src);
      this.player.remove();
    }
    if (this.context.state !== "closed") await this.context.close();
  }
}

// The devices of the browser; an error where it gives this page none.
function devices() {
  if (navigator.mediaDevices) return navigator.mediaDevices;
  throw new Error("Browsers give sound only to pages of https:// or localhost.");
}

// echoCancellation: of the sound that the computer plays.
function grantMicrophone(deviceId, echoCancellation) {
  const audio = { echoCancellation, noiseSuppression: false, autoGainControl: true };
  if (deviceId) audio.deviceId = { exact: deviceId };
  return devices().getUserMedia({ audio });
}

async function grantTab() {
  if (!devices().getDisplayMedia) throw new Error("This browser cannot share the sound of a tab.");
  const wish = { audio: { suppressLocalAudioPlayback: false }, video: true, systemAudio: "include" };
  const stream = await devices().getDisplayMedia(wish);
  if (!stream.getAudioTracks().length) {
    stream.getTracks().forEach((track) => track.stop());
    throw new Error("No sound was shared: choose a tab, and “also share tab audio”.");
  }
  return stream;
}

// Microphones by id and name, the usual one first; names are known once the page was allowed to listen.
export async function microphones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
  const inputs = devices.filter(({ kind, deviceId }) => kind === "audioinput" && deviceId);
  const [alias] = inputs.filter(({ deviceId }) => deviceId === "default"); // some browsers list it as one more device
  const found = inputs.filter(({ deviceId }) => deviceId !== "default");
  return found.sort((a, b) => Number(b.groupId === alias?.groupId) - Number(a.groupId === alias?.groupId));
}
