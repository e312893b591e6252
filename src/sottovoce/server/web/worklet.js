// Runs in the audio thread: sound at the device's rate into messages of 16 kHz, 16 bits, whose channels alternate.

import { Resampler } from "./resampler.js";

const RATE = 16000;
const MESSAGE_SAMPLES = 1600; // 100 ms
const SILENCE = new Float32Array(128);

class Capture extends AudioWorkletProcessor {
  constructor({ processorOptions: { channels } }) {
    super();
    this.resamplers = Array.from({ length: channels }, () => new Resampler(sampleRate, RATE));
    this.message = new Int16Array(MESSAGE_SAMPLES * channels);
    this.filled = 0;
    this.peak = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.take(this.resamplers.map((resampler) => resampler.flush()));
      this.send(true);
      this.ended = true;
    };
  }

  process(inputs) {
    // A player that pauses gives nothing, and time goes on.
    if (!this.ended) this.take(this.resamplers.map((resampler, i) => resampler.push(inputs[0][i] ?? SILENCE)));
    return !this.ended;
  }

  take(channels) {
    for (let at = 0; at < channels[0].length; at += 1) {
      for (const samples of channels) {
        const clipped = Math.max(-1, Math.min(1, samples[at]));
        this.peak = Math.max(this.peak, Math.abs(clipped));
        this.message[this.filled] = Math.round(clipped * 32767);
        this.filled += 1;
      }
      if (this.filled === this.message.length) this.send(false);
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
