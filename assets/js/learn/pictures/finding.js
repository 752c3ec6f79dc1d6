// The texts around a picture: above it a hint where to look, below it the finding of the runs.

import { el, show } from "../../shared/dom.js";
import { OutcomeNote } from "./outcome.js";
import { inlines } from "../text.js";

const SENTENCES = {
  explained: "",
  otherwise: "The result of these runs differs from the lesson’s explanation.",
  doubtful: "These times are unreliable:",
  unmeasured: "Not measured here:",
  unchecked: "",
};

export class Finding {
  /**
   * @param {any} about the picture's description
   * @param {(() => void) | null} onAgain
   */
  constructor({ see, finding }, onAgain) {
    this.look = el("p", { class: "ddp-lesson-look", hidden: true }, inlines(see));
    this.hasLook = see.length > 0;
    this.words = el("p", { class: "ddp-lesson-because", hidden: true }, inlines(finding));
    this.hasWords = finding.length > 0;
    this.note = new OutcomeNote(onAgain);
  }

  /** Adds the texts to a picture and returns its element. */
  around({ element }) {
    element.prepend(this.look);
    element.append(this.words, this.note.element);
    return element;
  }

  /** @param {import("./outcome.js").Outcome | null} outcome null while the runs are live */
  update(outcome) {
    show(this.look, outcome !== null && this.hasLook);
    show(this.words, outcome?.verdict === "explained" && this.hasWords);
    const isDisturbed = outcome?.verdict === "explained" && outcome.reasons.length > 0;
    if (outcome) this.note.update(outcome, isDisturbed ? SENTENCES.doubtful : SENTENCES[outcome.verdict]);
    else show(this.note.element, false);
  }
}
