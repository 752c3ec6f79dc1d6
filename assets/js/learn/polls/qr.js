// The address of a poll for phones, as a QR code and in letters; or why phones cannot reach it.

import { el, svg } from "../../shared/dom.js";
import { fetchJson } from "../../shared/net.js";
import { pollAddress } from "./feed.js";

// What readers need around a code, in modules.
const QUIET = 4;

/** Returns an element that fills itself. */
export function joinCard(pollId) {
  const box = el("div", { class: "ddp-poll-join" }, el("p", { class: "ddp-hint" }, "Making the code …"));
  fetchJson(pollAddress(pollId, "qr")).then(
    ({ address, problem, rows }) => {
      if (address === null) box.replaceChildren(el("p", { class: "ddp-connection" }, problem));
      else {
        box.replaceChildren(
          ...(rows.length > 0 ? [code(rows)] : []),
          el("p", {}, "Open this on your phone:"),
          el("a", { href: address, class: "ddp-poll-address" }, address),
        );
      }
    },
    (error) => box.replaceChildren(el("p", { class: "ddp-connection" }, error.message)),
  );
  return box;
}

function code(rows) {
  const size = rows.length + 2 * QUIET;
  const path = rows
    .flatMap((row, y) => [...row].map((dark, x) => (dark === "1" ? `M${x + QUIET} ${y + QUIET}h1v1h-1z` : "")))
    .join("");
  return svg(
    "svg",
    { viewBox: `0 0 ${size} ${size}`, class: "ddp-poll-code", role: "img", "aria-label": "QR code of the address", "shape-rendering": "crispEdges" },
    svg("rect", { width: size, height: size, fill: "#fff" }),
    svg("path", { d: path, fill: "#000" }),
  );
} // prettier-ignore
