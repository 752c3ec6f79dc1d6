// Applies a suggestion that was clicked or chosen: the server sets the fields, as each kind of control needs it.

/** Listens once, for all suggestions there will be. */
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
