// Applies a suggestion that was clicked: the server sets the fields, as each kind of control needs it.

/** Listens once, for all suggestions there will be. */
export function beginSuggestions() {
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button.ddp-suggestion") : null;
    const place = document.getElementById("suggestion");
    if (!(button instanceof HTMLButtonElement) || !place) return;
    place.dataset.values = button.dataset.values;
    place.click();
  });
}
