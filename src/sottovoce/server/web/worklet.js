// Runs in the audio thread: sound at the device's rate into messages of 16 kHz, 16 bits, one channel.

import { Resampler } from "./resampler.js";

const RATE = 16000;
const MESSAGE_SAMPLES = 1600; // 100 ms
const SILENCE = new Float32Array(128);

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE);
    this.message = new Int16Array(MESSAGE_SAMPLES);
    this.filled = 0;
    this.peak = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.take(this.resampler.flush());
      this.send(true);
      this.ended = true;
    };
  }

  process(inputs) {
    const channel = inputs[0][0] ?? SILENCE; // a player that pauses gives nothing, and time goes on
    if (!this.ended) this.take(this.resampler.push(channel));
    return !this.ended;
  }

  take(samples) {
    for (const sample of samples) {
      const clipped = Math.max(-1, Math.min(1, sample));
      this.peak = Math.max(this.peak, Math.abs(clipped));
      this.message[this.filled] = Math.round(clipped * 32767);
      this.filled += 1;
      if (this.filled === MESSAGE_SAMPLES) this.send(false);
    }
  }

  send(last) {
    const pcm = this.message.slice(0, this.filled);
    this.port.postMessage({ pcm, peak: this.peak, last }, [pcm.buffer]);
    this.filled = 0;
    this.peak = 0;
  }
}

registerProcessor("capture", Capture);
