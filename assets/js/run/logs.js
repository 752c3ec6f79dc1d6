// The logs of the ranks and of torchrun, polled while they are visible.

import { el, freeId, makeButton, section, setAttribute, setText, show, visible } from "../shared/dom.js";
import { bytes, count, worldSize } from "../shared/format.js";
import { askEvery, fetchJson, runAddress } from "../shared/net.js";
import { paragraph, textButton } from "../shared/widgets.js";

const POLL_EVERY_MS = 1500;
const MAX_CHARACTERS = 200_000;
const CUT_TO_CHARACTERS = 150_000;
const NEAR_END_PX = 30;
const SEARCH_AFTER_MS = 200;

/** @param {number} numNodes each node has its own torchrun */
function torchruns(numNodes) {
  return [...Array(numNodes).keys()].map((node) => (node === 0 ? "torchrun" : `torchrun_${node}`));
}

export class LogPanel {
  constructor(runId, { config, script }) {
    this.runId = runId;
    // Starts as true, so that the log is loaded once for printing; then it is polled only while visible.
    this.isInView = true;
    this.offset = -1;
    this.numCharacters = 0;
    this.sources = [
      ...[...Array(worldSize(config)).keys()].map(String),
      ...torchruns(config.num_nodes ?? 1),
      ...(script ? ["slurm"] : []),
    ];
    this.hangSeq = -1;
    this.textId = freeId("ddp-log-text");
    this.tabs = this.sources.map((source) => this.tab(source));
    this.text = el("pre", {
      class: "ddp-log",
      tabindex: 0,
      role: "tabpanel",
      id: this.textId,
      "aria-live": "off",
      onscroll: () => show(this.toEnd, !this.isAtEnd()),
    });
    this.note = paragraph("hint", "\u00a0");
    this.toEnd = textButton("Follow the end", () => this.scrollToEnd(), "small", { hidden: true });
    this.toEnd.classList.add("ddp-to-end");
    this.tablist = el("div", { class: "ddp-tabs", role: "tablist", "aria-label": "Choose a log" }, this.tabs);
    this.tablist.addEventListener("keydown", (event) => this.moveBetweenTabs(event));
    this.search = el("input", {
      type: "search",
      placeholder: "Search this log",
      "aria-label": "Search this log",
      class: "ddp-input",
      maxlength: 200,
      oninput: () => this.searchSoon(),
    });
    const head = el("div", { class: "ddp-logs-head" }, this.tablist, this.search);
    const box = el("div", { class: "ddp-log-box" }, this.text, this.toEnd);
    this.element = section("Logs", "logs", head, box, this.note);
    this.sight = new IntersectionObserver((entries) => {
      this.isInView = entries.at(-1)?.isIntersecting ?? false;
      if (this.isInView) this.refresh();
    });
    this.sight.observe(this.element);
    this.choose(this.sources[0]);
    this.endPolling = askEvery(POLL_EVERY_MS, () => this.refresh());
  }

  tab(source) {
    const [, node] = source.split("_");
    const others = {
      torchrun: "torchrun",
      slurm: "Slurm",
      hang: "stacks at the hang",
      [`torchrun_${node}`]: `torchrun, node ${node}`,
    };
    const onclick = () => this.choose(source);
    const attributes = { role: "tab", "aria-controls": this.textId, "data-source": source, onclick };
    return makeButton(attributes, others[source] ?? `rank ${source}`);
  }

  /** Adds a tab for the stacks of all ranks after a hang; only the latest hang is shown. */
  update({ marks }) {
    const hang = marks.findLast((mark) => mark.code === "hang");
    if (hang === undefined || hang.seq <= this.hangSeq) return;
    this.hangSeq = hang.seq;
    if (this.sources.includes("hang")) {
      if (this.source === "hang") this.restart();
      return;
    }
    const tab = this.tab("hang");
    setAttribute(tab, "aria-selected", "false");
    setAttribute(tab, "tabindex", "-1");
    this.sources.push("hang");
    this.tabs.push(tab);
    this.tablist.append(tab);
  }

  choose(source) {
    if (this.source === source) return;
    this.source = source;
    for (const tab of this.tabs) {
      const isChosen = tab.dataset.source === source;
      setAttribute(tab, "aria-selected", String(isChosen));
      setAttribute(tab, "tabindex", isChosen ? "0" : "-1");
    }
    this.restart();
  }

  moveBetweenTabs(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const at = (this.sources.indexOf(this.source) + by + this.sources.length) % this.sources.length;
    this.choose(this.sources[at]);
    this.tabs[at].focus();
    event.preventDefault();
  }

  searchSoon() {
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.restart(), SEARCH_AFTER_MS);
  }

  /** Starts from scratch, for another log or another search. */
  restart() {
    this.offset = -1;
    this.clear();
    if (this.search.value.trim() === "") this.refresh();
    else this.find(this.search.value.trim());
  }

  async find(text) {
    const source = this.source;
    try {
      const result = await fetchJson(runAddress(this.runId, `log/${source}/search`, { words: text }));
      if (source !== this.source || text !== this.search.value.trim()) return;
      this.clear();
      this.text.append(...result.lines.flatMap((line) => markedLine(line, text)));
      this.scrollToEnd();
      const { num_found: num, lines, is_whole: isWhole } = result;
      const shown = num > lines.length ? `; the newest ${count(lines.length)} are shown` : "";
      const where = isWhole ? "" : ", in the newest 64 MB";
      const have = num === 1 ? "1 line has" : `${count(num)} lines have`;
      setText(this.note, `${num === 0 ? "No line has" : have} “${text}”${where}${shown}.`);
    } catch (error) {
      setText(this.note, error.message);
    }
  }

  async refresh() {
    if (this.search.value.trim() !== "") return;
    if (!this.isInView || this.asking === this.source) return;
    const source = this.source;
    this.asking = source;
    try {
      const answer = await fetchJson(runAddress(this.runId, `log/${source}`, { offset: this.offset }));
      if (source === this.source && this.search.value.trim() === "") this.take(answer);
    } catch (error) {
      if (source === this.source) setText(this.note, error.message);
    } finally {
      if (this.asking === source) this.asking = null;
    }
  }

  take({ text, offset, size }) {
    const isFirst = this.offset < 0;
    // The end of a log is the interesting part, but the beginning of the stacks of a hang.
    const wasAtEnd = isFirst ? this.source !== "hang" : this.isAtEnd();
    // The file is smaller than the offset: it was truncated or replaced, and this is its end.
    if (!isFirst && size < this.offset) this.clear();
    this.offset = offset;
    if (text !== "") {
      const lines = visible(asLines(text));
      this.text.append(document.createTextNode(lines));
      this.numCharacters += lines.length;
      this.cut();
      if (wasAtEnd) this.scrollToEnd();
    }
    const sizeText = `${bytes(size)} written; the newest part is shown.`;
    setText(this.note, size === 0 ? "Nothing has been written to this log." : sizeText);
  }

  cut() {
    if (this.numCharacters <= MAX_CHARACTERS) return;
    while (this.numCharacters > CUT_TO_CHARACTERS && this.text.childNodes.length > 1) {
      this.numCharacters -= this.text.firstChild.data.length;
      this.text.firstChild.remove();
    }
  }

  clear() {
    this.text.replaceChildren();
    this.numCharacters = 0;
    show(this.toEnd, false);
  }

  isAtEnd() {
    return this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < NEAR_END_PX;
  }

  scrollToEnd() {
    this.text.scrollTop = this.text.scrollHeight;
  }

  close() {
    this.endPolling();
    clearTimeout(this.searching);
    this.sight.disconnect();
  }
}

/** A log as plain text: removes colour codes and puts each update of a progress bar on a line. */
function asLines(text) {
  return text.replaceAll(/\u001b\[[0-9;]*m/g, "").replaceAll(/\r(?!\n)/g, "\n");
}

/** A line of text with the search words marked. */
function markedLine(line, text) {
  const searchTerms = text.toLowerCase().split(/\s+/);
  const lower = line.toLowerCase();
  const nodes = [];
  let at = 0;
  while (at < line.length) {
    const hits = searchTerms.map((word) => [lower.indexOf(word, at), word]).filter(([place]) => place >= 0);
    if (hits.length === 0) break;
    const [place, word] = hits.reduce((first, hit) => (hit[0] < first[0] ? hit : first));
    nodes.push(line.slice(at, place), el("mark", {}, line.slice(place, place + word.length)));
    at = place + word.length;
  }
  return [...nodes, `${line.slice(at)}\n`].map((node) => (typeof node === "string" ? visible(node) : node));
}
