// "Check this machine": runs short real jobs and compares their results with the last check.

import { person } from "../auth/person.js";
import { CommandLine, buttonLink, buttonRow, makeTable, paragraph, updateRows } from "../shared/widgets.js";
import { el, icon, section, setAttribute, setText, show } from "../shared/dom.js";
import { UNKNOWN, dateTime, duration, number, rate, shortTime } from "../shared/format.js";
import { address } from "../shared/net.js";
import { JobCheck } from "./check.js";

const COLUMNS = ["result", "check", "took", "compared with last time"];
const STATES = {
  waiting: ["wait", "waits"],
  running: ["play", "being checked"],
  passed: ["check", "passed"],
  failed: ["cross", "failed"],
  not_checked: ["question", "could not be checked"],
  skipped: ["square", "skipped"],
  cancelled: ["square", "cancelled"],
};

class FindingsTable {
  constructor() {
    this.body = el("tbody", {});
    const caption = "Checks, their results, and the previous results";
    this.element = makeTable("ddp-table ddp-findings", COLUMNS, this.body, caption);
  }

  take(findings) {
    updateRows(this.body, findings, (finding) => finding.id, newRow, updateRow);
    show(this.element, findings.length > 0);
  }
}

function newRow() {
  const row = el("tr", {}, el("td", {}), el("th", { scope: "row" }), el("td", {}), el("td", {}));
  const parts = ["ddp-finding-title", "ddp-finding-words", "ddp-finding-values", "ddp-finding-hint"];
  row.children[1].append(...parts.map((name) => el("span", { class: name })));
  return row;
}

function updateRow(row, finding) {
  const [result, check, took, last] = row.children;
  if (row.dataset.state !== finding.state) {
    row.dataset.state = finding.state;
    const [sign, text] = STATES[finding.state] ?? STATES.not_checked;
    result.replaceChildren(icon(sign), el("span", {}, text));
  }
  const values = finding.values.map(({ name, value, unit }) => `${name}: ${toText(value, unit)}`).join(" · ");
  [finding.title, finding.words, values, finding.hint].forEach((text, index) => {
    setText(check.children[index], text);
    show(check.children[index], text !== "");
  });
  setText(took, finding.seconds === null ? "" : shortTime(finding.seconds));
  setText(last, finding.compared || (finding.seconds === null ? "" : UNKNOWN));
}

function toText(value, unit) {
  if (unit === "bytes/s") return rate(value);
  return unit === "s" ? shortTime(value) : number(value, 2);
}

// The start of the server's error message for an unknown check id.
const UNKNOWN_CHECK = "check_id is ";
const IS_OPEN = new Set(["waiting", "running"]);
const WHY =
  "Runs short real jobs, one after the other, and reports whether each passed: every strategy that fits, a checkpoint, " +
  "a killed rank, an exact resume, Stop, all-reduces, the disk, and whether driver, wheel and card fit. It takes only GPUs " +
  "that are idle, otherwise two ranks on the CPU; on a busy machine it takes longer.";

export class SelfCheck extends JobCheck {
  constructor({ command }) {
    super("Check this machine", "Cancel", {
      begin: "check_machine",
      read: "machine_check",
      stop: "cancel_machine_check",
    });
    this.isLost = false;
    this.start.setAttribute("aria-describedby", "ddp-self-check-why-not");
    this.file = buttonLink("File for a bug report", { download: "", hidden: true });
    const teachers = "Only a teacher can start or cancel a check of this machine: it takes every free GPU.";
    const whyNot = { id: "ddp-self-check-why-not", hidden: true };
    this.whyNot = el("p", { class: "ddp-hint ddp-check-busy", ...whyNot }, teachers);
    this.busy = paragraph("hint ddp-check-busy");
    this.now = el("span", { role: "status" });
    // Outside of the live region, because it changes every second.
    this.soFar = el("span", {});
    this.head = el("p", { class: "ddp-self-check-now" }, this.now, this.soFar);
    this.description = paragraph("hint");
    this.table = new FindingsTable();
    const parts = [this.head, this.description, this.table];
    this.result = el("div", { class: "ddp-self-check-result", hidden: true }, parts);
    this.element = section(
      "Does training work on this machine?",
      "self-check",
      paragraph("caption", WHY),
      buttonRow(this.start, this.stop, this.file, this.whyNot, this.busy),
      this.result,
      new CommandLine(command, "the command of the check"),
    );
    // With a login only teachers may start a check, because it uses every free GPU.
    person().then(({ role }) => {
      this.isTeacher = role === "teacher";
      show(this.whyNot, !this.isTeacher);
      this.setButtons();
    });
  }

  /** The report names the live runs and the latest check, which another user may have started. */
  update({ runs, machine_check: { newest_check_id: newest, is_running: isRunning } }) {
    if (newest !== this.reported) {
      this.reported = newest;
      // After a lost check keep its message: do not show an older check instead.
      if (newest && newest !== this.check?.check_id && (isRunning || !this.isLost)) this.follow(newest);
    }
    const live = runs.length === 1 ? "A run is live" : `${runs.length} runs are live`;
    const text = `${live}: a check slows down training, and its timings are unreliable.`;
    setText(this.busy, runs.length === 0 ? "" : text);
  }

  /** @override */
  heard(error) {
    if (error.message.startsWith(UNKNOWN_CHECK)) {
      this.lose();
      return;
    }
    show(this.result, true);
    setText(this.now, `${error.message} Trying again …`);
  }

  /** The server does not know the check, because a restart of the app stopped it. */
  lose() {
    this.endFollowing();
    this.isLost = true;
    if (!this.isRunning) return;
    const findings = this.check.findings.map((finding) =>
      IS_OPEN.has(finding.state) ? { ...finding, state: "cancelled" } : finding,
    );
    const error = "The page was restarted; that check was stopped.";
    this.take({ ...this.check, state: "failed", findings, error });
  }

  /** @override */
  show(check) {
    if (this.isRunning) this.isLost = false;
    show(this.result, true);
    setText(this.now, nowText(check));
    setText(this.soFar, check.state === "running" ? ` (${duration(check.took_s)} so far)` : "");
    const verdict = check.state === "running" ? "running" : "bad";
    setAttribute(this.head, "data-state", isGood(check) ? "good" : verdict);
    setText(this.description, aboutText(check));
    this.table.take(check.findings);
  }

  /** @override */
  setButtons() {
    super.setButtons();
    if (!this.isTeacher) this.start.disabled = true;
    if (!this.isTeacher || this.check?.is_being_cancelled) this.stop.disabled = true;
    const hasFile = ["done", "cancelled"].includes(this.check?.state) && this.check.findings.length > 0;
    show(this.file, hasFile);
    if (hasFile) {
      this.file.href = address(`live/machine/check/${encodeURIComponent(this.check.check_id)}/report.txt`);
    }
  }
}

function isGood(check) {
  return (
    check.state === "done" && check.findings.every(({ state }) => state === "passed" || state === "skipped")
  );
}

function nowText(check) {
  const { state, findings } = check;
  if (state === "failed") return check.error;
  if (state === "cancelled") return "Cancelled. No process is left.";
  if (state === "done") return check.summary;
  if (check.is_being_cancelled) return "Cancelling …";
  if (check.now === null) return "Starting …";
  const done = findings.filter((finding) => finding.seconds !== null).length;
  return `${done + 1} of ${findings.length}: ${check.now} …`;
}

function aboutText(check) {
  if (check.device === null) return "";
  const parts = [`On ${check.device}`, dateTime(check.started_unix_s)];
  if (check.state !== "running") parts.push(`${duration(check.took_s)} in all`);
  const text = [`${parts.join(" · ")}.`];
  if (check.had_company) text.push("Other runs were live: the timings are unreliable.");
  if (check.compared_with_unix_s !== null) {
    text.push(`Compared with ${dateTime(check.compared_with_unix_s)}.`);
  }
  return text.join(" ");
}
