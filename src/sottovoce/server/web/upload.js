// Sends a recording to be read as a whole: better text than live, which comes segment by segment.

const ADDRESS = "/v1/audio/transcriptions";

// fields: of the form, [name, value]. Events: "sent" with a part from 0 to 1, "segment" with an event of the server,
// "end", "error" with a message and a code.
export class Upload extends EventTarget {
  constructor(file, fields, key) {
    super();
    const form = new FormData();
    for (const [name, value] of fields) form.append(name, value);
    form.append("file", file, file.name);
    this.read = 0; // characters of the answer
    this.request = new XMLHttpRequest();
    this.request.open("POST", ADDRESS);
    if (key) this.request.setRequestHeader("authorization", `Bearer ${key}`);
    this.request.upload.onprogress = ({ loaded, total }) => this.say("sent", total ? loaded / total : 0);
    this.request.upload.onload = () => this.say("sent", 1);
    this.request.onprogress = () => this.receive();
    this.request.onload = () => this.finish();
    this.request.onerror = () => this.say("error", { message: "The connection to the server was lost." });
    this.request.send(form);
  }

  receive() {
    if (this.request.status !== 200) return;
    const text = this.request.responseText;
    for (let end = text.indexOf("\n\n", this.read); end >= 0; end = text.indexOf("\n\n", this.read)) {
      const line = text.slice(this.read, end);
      this.read = end + 2;
      if (line.startsWith("data: ")) this.take(JSON.parse(line.slice(6)));
    }
  }

  take(event) {
    if (event.error) this.fault = event.error;
    if (event.type === "transcript.text.segment") this.say("segment", event);
    if (event.type === "transcript.text.done") this.isDone = true;
  }

  finish() {
    this.receive();
    if (this.request.status !== 200) this.fault = errorOf(this.request.responseText);
    if (this.isDone) this.say("end");
    else this.say("error", this.fault ?? { message: "The server stopped before the end of the recording." });
  }

  cancel() {
    this.request.abort();
    this.say("end");
  }

  say(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

function errorOf(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return { message: "The server did not answer as expected." };
  }
}
