// Two pages of one person tell of the same lesson; `ddp_gui/learn/progress.py` joins them by the same rule.

/**
 * @typedef {object} Progress
 * @property {number} round how often the lesson was begun anew
 * @property {string | null} poll in which it was predicted
 * @property {any} prediction a choice, or the values of a drawn curve; null until there is one
 * @property {boolean} isLocked the prediction stands
 * @property {boolean} isStarted the lesson's runs are wanted
 * @property {(string | null)[]} runs their ids, null where one was not started yet
 * @property {Record<string, { choice: string, runId: string }[]>} attempts by question
 * @property {Record<string, number>} answers by question
 * @property {boolean} isDone everything is answered
 */

/** @returns {Progress} */
export function nothing() {
  return {
    round: 0,
    poll: null,
    prediction: null,
    isLocked: false,
    isStarted: false,
    runs: [],
    attempts: {},
    answers: {},
    isDone: false,
  };
}

/**
 * Whether one page knows of something that another does not: a start, a lock, an answer, a lesson begun anew.
 * @param {Progress} one
 * @param {Progress} other
 */
export function isAhead(one, other) {
  if (one.round !== other.round) return one.round > other.round;
  const numAnswers = Object.keys(one.answers).length - Object.keys(other.answers).length;
  return (one.isLocked && !other.isLocked) || (one.isStarted && !other.isStarted) || numAnswers > 0;
}

/**
 * What holds after a page has told: the newer wins, and no started run is lost. What is told of an earlier round is
 * out of date.
 * @param {Progress} known
 * @param {Progress} told
 * @returns {Progress}
 */
export function joined(known, told) {
  if (told.round !== known.round) return told.round > known.round ? told : known;
  const found = { ...told };
  const { isLocked, prediction, poll } = known;
  if (isLocked) Object.assign(found, { isLocked, prediction, poll });
  // Who does not know of a run has not stopped the lesson either.
  const knowsLess = known.runs.some((runId, index) => runId !== null && !told.runs[index]);
  found.isStarted = told.isStarted || (known.isStarted && knowsLess);
  found.isDone = known.isDone || told.isDone;
  const length = Math.max(known.runs.length, told.runs.length);
  found.runs = Array.from({ length }, (_, index) => told.runs[index] ?? known.runs[index] ?? null);
  found.attempts = { ...told.attempts };
  for (const [number, before] of Object.entries(known.attempts)) {
    const made = told.attempts[number] ?? [];
    const ids = new Set(made.map(({ runId }) => runId));
    found.attempts[number] = [...before.filter(({ runId }) => !ids.has(runId)), ...made];
  }
  found.answers = { ...told.answers, ...known.answers };
  return found;
}
