// Why a run failed, for a learner: without places in the code, and with steps counted as the page counts them.

// Such as ", in trainers/parallel/shared_all_reduce.py:157, SharedSum._wait_for".
const PLACE_IN_CODE = /, in [^;,]+:\d+, [^;]+?(?=;|\.\s|\.$)/g;
const AT_STEP = /\bis at step ([\d,]+), /g;

/** @param {string} error */
export function plainWords(error) {
  return error.replaceAll(PLACE_IN_CODE, "").replaceAll(AT_STEP, (_, step) => {
    const num = Number(step.replaceAll(",", "")) - 1;
    return `has done ${num.toLocaleString("en")} step${num === 1 ? "" : "s"} and is `;
  });
}
