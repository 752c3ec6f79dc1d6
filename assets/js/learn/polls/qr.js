// The URL of a poll for phones as a QR code and as text, or the reason why phones cannot reach it.

import { el, svg } from "../../shared/dom.js";
import { address, fetchJson } from "../../shared/net.js";
import { pollAddress } from "./feed.js";

// The quiet zone that QR readers require, in modules.
const QUIET = 4;

/** Returns an element that loads its own content. A class with a login needs no code. */
export function joinCard(pollId, { hasLogin, isProjector }) {
  const box = el("div", { class: "ddp-poll-join" });
  const here = hasLogin
    ? el("p", {}, "Log in, open Learn, and press Join.")
    : el("a", { href: address(`poll?id=${encodeURIComponent(pollId)}`) }, "Answer in this browser");
  if (hasLogin) box.append(here);
  fetchJson(pollAddress(pollId, "qr")).then(
    ({ address: url, problem, rows }) => {
      if (url !== null) {
        if (rows.length > 0) box.append(code(rows));
        box.append(
          el("p", {}, "On a phone, open"),
          el("a", { href: url, class: "ddp-poll-address" }, url.replace(/^http:\/\//, "")),
        );
      } else if (!hasLogin || !isProjector) {
        box.append(el("p", { class: hasLogin ? "ddp-hint" : "ddp-connection" }, problem));
        if (!hasLogin) box.append(here);
      }
    },
    (error) => box.append(el("p", { class: "ddp-connection" }, error.message)),
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
