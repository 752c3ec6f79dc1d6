// Applies a suggestion from a button or a select. The server sets the fields, because each kind of Gradio
// component needs its own update.

/** Adds one listener for all present and future suggestions. */
export function beginSuggestions() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button.ddp-suggestion") : null;
    if (button instanceof HTMLButtonElement) apply(button.dataset.values);
  });
  document.addEventListener("change", (event) => {
    const choice = event.target;
    if (!(choice instanceof HTMLSelectElement) || !choice.matches("select.ddp-suggestion")) return;
    apply(choice.selectedOptions[0]?.dataset.values);
  });
}

/** @param {string | undefined} values */
function apply(values) {
  const place = document.getElementById("suggestion");
  if (!place || !values) return;
  place.dataset.values = values;
  place.click();
}
