// Polls while the page is visible, one request at a time.

/**
 * Calls `ask()` now, then every `everyMs` while the page is visible, and immediately when the page becomes
 * visible again. Calls `onAnswer(error | null)` after each request. Returns a function that stops polling.
 * @param {number} everyMs
 * @param {() => Promise<unknown>} ask
 * @param {(error: Error | null) => void} onAnswer
 */
export function askEvery(everyMs, ask, onAnswer) {
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
