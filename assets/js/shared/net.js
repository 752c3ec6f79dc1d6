// Requests to our own server, whatever prefix a reverse proxy puts in front of it.

// This file is PREFIX/live/assets/js/shared/net.js.
const ROOT = new URL("../../../../", import.meta.url);

const NO_ANSWER =
  "The server of this page does not answer. A live run continues without it; restart the page to see it.";

/** An error whose message can be shown as it is. */
export class PlainError extends Error {
  /** The status of the answer, where there was one. */
  status = 0;
}

/** The address of a path below the page's root. */
export function address(path) {
  return new URL(path, ROOT).href;
}

/** The page of a run. */
export function runPage(runId) {
  return address(`run?id=${encodeURIComponent(runId)}`);
}

/** The page that compares runs. */
export function comparePage(runIds) {
  return address(`runs?compare=${runIds.map(encodeURIComponent).join(",")}`);
}

/** Two runs on one screen, for a projector. */
export function sideBySidePage([one, other]) {
  return `${runPage(one)}&beside=${encodeURIComponent(other)}`;
}

/** The address of the form, filled in as a run was, with some fields changed. */
export function againAddress(runId, changes = {}) {
  const url = new URL(address(""));
  url.searchParams.set("from", runId);
  for (const [name, value] of Object.entries(changes)) url.searchParams.set(name, String(value));
  return url.href;
}

/** The address of one of a run's live routes. */
export function runAddress(runId, route, query = {}) {
  const url = new URL(`live/runs/${encodeURIComponent(runId)}/${route}`, ROOT);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url.href;
}

/** Returns the JSON at an address and its size in bytes; throws a PlainError. */
export async function fetchSized(url, options = {}) {
  let response;
  let text;
  try {
    response = await fetch(url, { cache: "no-store", ...options });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new PlainError(NO_ANSWER);
  }
  if (response.status === 401) {
    // The session is over: the server answers with the page to log in, which leads back here.
    window.location.reload();
    throw new PlainError("You are not logged in any more.");
  }
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    throw new PlainError(`The server answered ${response.status} with an invalid reply.`);
  }
  if (!response.ok) {
    const words = body?.error ?? body?.detail;
    const error = new PlainError(
      typeof words === "string" ? words : `The server answered ${response.status}.`,
    );
    error.status = response.status;
    throw error;
  }
  return { body, bytes: byteLength(text) };
}

/** Returns the JSON at an address; throws a PlainError. */
export async function fetchJson(url, options = {}) {
  return (await fetchSized(url, options)).body;
}

/** Calls a named endpoint and returns its result; throws a PlainError. */
export async function callEndpoint(name, ...values) {
  const answer = await fetchJson(address(`gradio_api/run/${name}`), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ data: values }),
  });
  return answer.data[0];
}

/** The size of a text as it travels. */
export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}
