// Requests to our own server, under any path prefix that a reverse proxy adds.

// This file is PREFIX/live/assets/js/shared/net.js. Packed into another file, it has no server.
const ROOT = import.meta.url.startsWith("http") ? new URL("../../../../", import.meta.url) : undefined;

const NO_ANSWER =
  "The server of this page does not answer. A live run continues without it; restart the page to see it.";

/** An error whose message can be shown to the user without changes. */
export class PlainError extends Error {
  /** The HTTP status; 0 if there was no response. */
  status = 0;
}

/**
 * The URL of a path below the root of the app, with the parameters of a query.
 * @param {string} path
 * @param {Record<string, unknown>} query
 */
export function address(path, query = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, String(value));
  return url.href;
}

/**
 * The URL of a run's page.
 * @param {string} runId
 */
export function runPage(runId) {
  return address("run", { id: runId });
}

/**
 * The URL of the page that compares runs.
 * @param {string[]} runIds
 */
export function comparePage(runIds) {
  return address(`runs?compare=${runIds.map(encodeURIComponent).join(",")}`);
}

/**
 * The URL of two runs side by side, for a projector.
 * @param {string[]} runIds
 */
export function sideBySidePage([one, other]) {
  return `${runPage(one)}&beside=${encodeURIComponent(other)}`;
}

/**
 * The URL of the form with the configuration of a run and some fields changed.
 * @param {string} runId
 * @param {Record<string, unknown>} changes
 */
export function rerunAddress(runId, changes = {}) {
  return address("", { from: runId, ...changes });
}

/**
 * The URL of "Run my script" with the code and settings of a run.
 * @param {string} runId
 */
export function scriptAddress(runId) {
  return address("script", { from: runId });
}

/**
 * The URL of a lesson.
 * @param {string} name
 */
export function lessonPage(name) {
  return address("learn", { lesson: name });
}

/**
 * The URL of a live route of a run.
 * @param {string} runId
 * @param {string} route
 * @param {Record<string, unknown>} query
 */
export function runAddress(runId, route, query = {}) {
  return address(`live/runs/${encodeURIComponent(runId)}/${route}`, query);
}

/**
 * The URL of the lab report of some runs.
 * @param {string[]} runIds
 */
export function reportAddress(runIds) {
  return address(`live/learn/report?runs=${runIds.map(encodeURIComponent).join(",")}`);
}

/**
 * Returns the JSON at a URL and its size in bytes; throws a PlainError.
 * @param {string} url
 * @param {RequestInit} options
 */
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
    // The session has expired: after a reload the server shows the login page, which redirects back here.
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
    const message = body?.error ?? body?.detail;
    const error = new PlainError(
      typeof message === "string" ? asSentence(message) : `The server answered ${response.status}.`,
    );
    error.status = response.status;
    throw error;
  }
  return { body, bytes: byteLength(text) };
}

/** Messages of the server are sentences, or name a field first and have no full stop. @param {string} text */
const asSentence = (text) => (/[.!?…:)]$/.test(text) ? text : `${text}.`);

/**
 * Returns the JSON at a URL; throws a PlainError.
 * @param {string} url
 * @param {RequestInit} options
 */
export async function fetchJson(url, options = {}) {
  return (await fetchSized(url, options)).body;
}

/**
 * The options of a request that sends values as JSON.
 * @param {unknown} values
 */
export function posted(values) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(values) };
}

/**
 * Calls a named endpoint and returns its result; throws a PlainError.
 * @param {string} name
 * @param {unknown[]} values
 */
export async function callEndpoint(name, ...values) {
  const answer = await fetchJson(address(`gradio_api/run/${name}`), posted({ data: values }));
  return answer.data[0];
}

/**
 * Resolves after a time.
 * @param {number} ms
 */
export function pause(ms) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
  });
}

/**
 * The size of a text in UTF-8 bytes.
 * @param {string} text
 */
export function byteLength(text) {
  return new TextEncoder().encode(text).length;
}

/**
 * Calls `ask()` now, then every `everyMs` while the page is visible, and immediately when the page becomes
 * visible again. Calls `onAnswer(error | null)` after each request. Returns a function that stops polling.
 * @param {number} everyMs
 * @param {() => Promise<unknown>} ask
 * @param {(error: Error | null) => void} onAnswer
 */
export function askEvery(everyMs, ask, onAnswer = () => {}) {
  let isAsking = false;
  let hasEnded = false;
  const refresh = async () => {
    if (isAsking || document.visibilityState !== "visible") return;
    isAsking = true;
    let problem = null;
    try {
      await ask();
    } catch (error) {
      problem = error;
    }
    isAsking = false;
    if (!hasEnded) onAnswer(problem);
  };
  const timer = setInterval(refresh, everyMs);
  document.addEventListener("visibilitychange", refresh);
  refresh();
  return () => {
    hasEnded = true;
    clearInterval(timer);
    document.removeEventListener("visibilitychange", refresh);
  };
}
