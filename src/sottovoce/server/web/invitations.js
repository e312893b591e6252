// The dialog that shares a session, and makes links of caption views.

import { qrCode } from "./qr.js";

const $ = (id) => document.getElementById(id);
const LOCAL = ["localhost", "127.0.0.1", "[::1]"];
const DEFAULTS = { lines: "2", color: "#ffffff" };

export class Invitations {
  // sharing: a Sharing. key: () => the API key. onError: (fault).
  constructor(sharing, transcript, { key, onError }) {
    this.sharing = sharing;
    this.transcript = transcript;
    $("share-open").addEventListener("click", () => this.open());
    $("share-start").addEventListener("click", () => sharing.start(key()));
    $("share-stop").addEventListener("click", () => sharing.stop());
    $("view").addEventListener("input", () => this.show());
    for (const button of document.querySelectorAll(".copy-link")) button.addEventListener("click", () => copyLink(button));
    for (const type of ["state", "readers"]) sharing.addEventListener(type, () => this.show());
    sharing.addEventListener("error", ({ detail }) => onError(detail));
  }

  open() {
    const chosen = $("view-language").value;
    const choices = this.transcript.languages.map((language) => new Option(this.transcript.name(language), language));
    $("view-language").replaceChildren(new Option("as spoken", ""), ...choices);
    $("view-language").value = chosen;
    this.show();
    $("share").showModal();
  }

  show() {
    const { state, token, readers } = this.sharing;
    const isOn = state !== "off" && token;
    $("share-on").hidden = !isOn;
    $("share-off").hidden = Boolean(isOn);
    $("share-start").disabled = state !== "off";
    const isLocal = LOCAL.includes(location.hostname);
    const origin = (isOn && isLocal && this.sharing.url) || location.origin;
    $("share-link").value = isOn ? `${origin}/read#${token}` : "";
    const code = isOn ? qrCode($("share-link").value) : null;
    $("share-code").replaceChildren(...(code ? [code] : []));
    const told = { on: readers === 1 ? "1 reader" : `${readers} readers`, lost: "connection lost: trying again", connecting: "connecting…" };
    $("share-state").textContent = told[state] ?? "";
    $("share-local").hidden = !isOn || !isLocal || Boolean(this.sharing.url);
    $("share-count").hidden = !isOn;
    $("share-count").textContent = String(readers);
    $("share-open").classList.toggle("on", Boolean(isOn));
    $("view-local").hidden = Boolean(isOn);
    this.showView(isOn ? `#${token}` : "");
  }

  showView(end) {
    const parameters = new URLSearchParams();
    for (const [name, value] of new FormData($("view"))) {
      if (value && value !== DEFAULTS[name]) parameters.set(name, value.replace(/^#/, "").replace(/^on$/, "true"));
    }
    const link = `${location.origin}/captions${parameters.size ? `?${parameters}` : ""}${end}`;
    $("view-link").value = link;
    $("view-open").href = link;
  }
}

async function copyLink(button) {
  await navigator.clipboard.writeText($(button.dataset.of).value);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
