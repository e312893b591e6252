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
      transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request?.error);
    });
  } finally {
    database.close();
  }
}

// session: {id, title, name, saved, duration, model, called, utterances}; sound: a Blob or null.
export function keep(session, sound) {
  return within("readwrite", (texts, sounds) => {
    texts.put(session);
    if (sound) sounds.put(sound, session.id);
  });
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
