// Calls the guest of a sandbox with the Connect protocol: JSON for single answers, length-prefixed JSON for streams.

const decoder = new TextDecoder();
const encoder = new TextEncoder();

export class CallError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function post(url, type, body, signal) {
  const headers = { "content-type": type, "connect-protocol-version": "1", "x-csrf-token": document.body.dataset.csrf };
  return fetch(url, { method: "POST", headers, body, signal });
}

async function failure(answer) {
  const text = await answer.text();
  let told = {};
  try { told = JSON.parse(text); } catch { /* The status says enough. */ }
  return new CallError(answer.status, told.code ?? "", told.message ?? `the server answered ${answer.status}`);
}

export async function call(url, message) {
  const answer = await post(url, "application/json", JSON.stringify(message));
  if (!answer.ok) throw await failure(answer);
  return answer.json();
}

/** Yields the messages of a stream. Throws if it breaks off or ends with an error. */
export async function* stream(url, message, signal) {
  const content = encoder.encode(JSON.stringify(message));
  const framed = new Uint8Array(5 + content.length);
  new DataView(framed.buffer).setUint32(1, content.length);
  framed.set(content, 5);
  const answer = await post(url, "application/connect+json", framed, signal);
  if (!answer.ok || !answer.body) throw await failure(answer);
  const reader = answer.body.getReader();
  let rest = new Uint8Array(0);
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new CallError(0, "unavailable", "the connection was closed");
    const joined = new Uint8Array(rest.length + value.length);
    joined.set(rest);
    joined.set(value, rest.length);
    rest = joined;
    while (rest.length >= 5) {
      const length = new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      if (rest.length < 5 + length) break;
      const [flags, frame] = [rest[0], rest.subarray(5, 5 + length)];
      rest = rest.subarray(5 + length);
      const told = JSON.parse(decoder.decode(frame) || "{}");
      if (flags & 2) {
        if (told.error) throw new CallError(0, told.error.code, told.error.message ?? told.error.code);
        return;
      }
      yield told;
    }
  }
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
