// Merges the progress of two pages of one user; `ddp_gui/learn/progress.py` applies the same rule.

/**
 * @typedef {object} Progress
 * @property {number} round how often the lesson was restarted
 * @property {string | null} poll the poll in which the prediction was made
 * @property {any} prediction a choice, or the values of a drawn curve; null if not made yet
 * @property {boolean} isLocked the prediction is final
 * @property {boolean} isStarted the lesson's runs were requested
 * @property {(string | null)[]} runs run ids, null if not started yet
 * @property {Record<string, { choice: string, runId: string }[]>} attempts by question
 * @property {Record<string, number>} answers by question
 * @property {boolean} isDone all questions are answered
 * @property {string | null} code the script of a lesson in code, as the learner left it
 * @property {number} numTries runs of a lesson in code
 * @property {boolean} isSolutionShown the solution of a lesson in code was shown
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
    code: null,
    numTries: 0,
    isSolutionShown: false,
  };
}

/**
 * True if a page knows a start, a lock, an answer or a restart that the other one does not.
 * @param {Progress} one
 * @param {Progress} other
 */
export function isAhead(one, other) {
  if (one.round !== other.round) return one.round > other.round;
  const numAnswers = Object.keys(one.answers).length - Object.keys(other.answers).length;
  return (one.isLocked && !other.isLocked) || (one.isStarted && !other.isStarted) || numAnswers > 0;
}

/**
 * Merges reported progress into the known one: the newer wins, and no started run is lost. Reports of an
 * earlier round are ignored.
 * @param {Progress} known
 * @param {Progress} told
 * @returns {Progress}
 */
export function joined(known, told) {
  if (told.round !== known.round) return told.round > known.round ? told : known;
  const found = { ...told };
  const { isLocked, prediction, poll } = known;
  if (isLocked) Object.assign(found, { isLocked, prediction, poll });
  // A page that does not know of a run cannot have stopped the lesson.
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
