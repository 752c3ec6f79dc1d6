// Settings of the class, for teachers: which runs students can see.

import { openDialog } from "../shared/dialog.js";
import { el } from "../shared/dom.js";
import { callEndpoint } from "../shared/net.js";
import { complain, inform } from "../shared/toast.js";

const WHO_SEES = [
  [
    true,
    "Everybody sees all runs",
    "People learn from each other’s curves. Only the owner and teachers can stop or change a run.",
  ],
  [false, "Everybody sees only their own", "For exams. Teachers still see all runs."],
];

/** Opens the dialog; saved settings take effect immediately for all users. */
export async function openClassSettings() {
  let settings;
  try {
    settings = await callEndpoint("class_settings", null);
  } catch (error) {
    complain(error.message);
    return;
  }
  const choices = WHO_SEES.map(([value, title, words]) =>
    choice(value, title, words, settings.everyone_sees),
  );
  await openDialog({
    title: "The class",
    content: el(
      "fieldset",
      { class: "ddp-class" },
      el("legend", {}, "Visibility of runs"),
      choices.map((each) => each.element),
    ),
    confirm: "Save",
    onConfirm: async () => {
      const { value, title } = choices.find((each) => each.input.checked) ?? choices[0];
      await callEndpoint("class_settings", { everyone_sees: value });
      inform(`${title}, from now on.`);
    },
  });
}

function choice(value, title, words, chosen) {
  const input = el("input", { type: "radio", name: "everyone_sees", checked: value === chosen });
  return {
    value,
    title,
    input,
    element: el("label", {}, input, el("span", {}, el("strong", {}, title), el("small", {}, words))),
  };
}
