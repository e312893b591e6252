// Sessions that were saved, in this browser alone (IndexedDB): their texts in one store, their sound in another.

const NAME = "sottovoce";
const TEXTS = "sessions";
const SOUNDS = "sounds";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(TEXTS, { keyPath: "id" });
      request.result.createObjectStore(SOUNDS);
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Do something with both stores; resolves when it is on disk, with its result.
async function within(mode, work) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction([TEXTS, SOUNDS], mode);
      const request = work(transaction.objectStore(TEXTS), transaction.objectStore(SOUNDS));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = transaction.onerror = ({ target }) => reject(target.error);
    });
  } finally {
    database.close();
  }
}

export function newId() {
  return crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
}

// session: {id, title, name, saved, duration, model, called, utterances}. seen: `saved` of the last version of this tab:
// where another tab has saved since, this one becomes a session with another id. Returns its id.
export async function keep(session, seen) {
  const kept = { ...session };
  await within("readwrite", (texts) => {
    texts.get(session.id).onsuccess = ({ target: { result: last } }) => {
      if (last && last.saved !== seen) kept.id = newId();
      texts.put(kept);
    };
  });
  return kept.id;
}

// sound: a Blob.
export function keepSound(id, sound) {
  return within("readwrite", (_, sounds) => sounds.put(sound, id));
}

export function sessions() {
  return within("readonly", (texts) => texts.getAll()).then((found) => found.sort((a, b) => b.saved - a.saved));
}

// The session of an id; undefined: there is none.
export function sessionOf(id) {
  return within("readonly", (texts) => texts.get(id));
}

export function soundOf(id) {
  return within("readonly", (_, sounds) => sounds.get(id));
}

export function forget(id) {
  return within("readwrite", (texts, sounds) => {
    texts.delete(id);
    sounds.delete(id);
  });
}
